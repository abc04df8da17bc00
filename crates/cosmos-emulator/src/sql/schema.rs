//! What a container tells its queries: how its vectors are compared, in which language its texts are, and the properties
//! it computes.

use std::sync::Arc;

use serde_json::{Value, json};

use super::ast::{Callee, Collection, Expr, InputMode, Kind, Query, Select};
use super::bind::{ROOT, called_functions};
use super::full_text::Language;
use super::function::{Function, LANGUAGE};
use super::source::{Direction, Path, Step};
use crate::Failure;

/// What queries must know of a container besides its documents.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// Where vectors stand, and how they are compared.
    vectors: Vec<(Path, Distance)>,
    /// Where texts stand, and in which language.
    texts: Vec<(Path, String)>,
    /// The language of all other texts.
    language: Option<String>,
    computed: Vec<Computed>,
    /// User defined functions: names and texts.
    functions: Arc<Functions>,
}

/// User defined functions, by name.
pub(crate) type Functions = Vec<(String, String)>;

/// A property that queries see and no document has.
#[derive(Debug, Clone)]
struct Computed {
    name: String,
    /// Over the whole document.
    expr: Expr,
    /// Whether the indexing policy includes it by name: `/*` does not.
    is_indexed: bool,
}

/// How two vectors are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Distance {
    Cosine,
    DotProduct,
    Euclidean,
}

impl Distance {
    /// By its name in a policy or in the options of a call.
    pub(crate) fn by_name(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "cosine" => Some(Self::Cosine),
            "dotproduct" => Some(Self::DotProduct),
            "euclidean" => Some(Self::Euclidean),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Cosine => "cosine",
            Self::DotProduct => "dotproduct",
            Self::Euclidean => "euclidean",
        }
    }

    /// The order in which the nearest comes first: similarities fall, distances rise.
    pub(crate) fn nearest_first(self) -> Direction {
        match self {
            Self::Cosine | Self::DotProduct => Direction::Descending,
            Self::Euclidean => Direction::Ascending,
        }
    }
}

/// Whether vectors can be compared by a function of this name.
pub(crate) fn is_distance_function(name: &str) -> bool {
    Distance::by_name(name).is_some()
}

/// Most calls of user defined functions in one query.
const CALLS_MAX: usize = 10;
/// Most computed properties of a container.
const COMPUTED_MAX: usize = 20;

impl Schema {
    /// From the body of a container that was checked.
    pub fn of(body: &Value) -> Self {
        let embeddings = body["vectorEmbeddingPolicy"]["vectorEmbeddings"].as_array();
        let vectors = embeddings.into_iter().flatten().filter_map(|embedding| {
            let distance = Distance::by_name(embedding["distanceFunction"].as_str()?)?;
            Some((plain_path(embedding["path"].as_str()?), distance))
        });
        let policy = &body["fullTextPolicy"];
        let tag = |language: &Value| language.as_str().map(str::to_owned);
        let texts = policy["fullTextPaths"].as_array().into_iter().flatten().filter_map(|text| {
            let language = tag(&text["language"]).or_else(|| tag(&policy["defaultLanguage"]))?;
            Some((plain_path(text["path"].as_str()?), language))
        });
        Self {
            vectors: vectors.collect(),
            texts: texts.collect(),
            language: tag(&policy["defaultLanguage"]),
            computed: computed(body).unwrap_or_default(),
            ..Self::default()
        }
    }

    /// The same with user defined functions.
    pub(crate) fn with_functions(self, functions: Functions) -> Self {
        Self { functions: Arc::new(functions), ..self }
    }

    /// The user defined functions.
    pub(crate) fn functions(&self) -> &Arc<Functions> {
        &self.functions
    }

    /// Refuses calls of functions that are not there, and too many of them.
    pub(crate) fn check_calls(&self, query: &Query) -> Result<(), Failure> {
        let mut names = Vec::new();
        called_functions(query, &mut names);
        if names.len() > CALLS_MAX {
            return Err(Failure::bad_request(format!(
                "The query exceeds the maximum of {CALLS_MAX} calls of user defined functions."
            )));
        }
        match names.iter().find(|name| !self.functions.iter().any(|(known, _)| known == *name)) {
            Some(name) => Err(Failure::bad_request(format!(
                "The user defined function '{name}' does not exist in the container."
            ))),
            None => Ok(()),
        }
    }

    /// Refuses computed properties that the service refuses.
    pub(crate) fn check(body: &Value) -> Result<(), Failure> {
        computed(body).map(drop)
    }

    /// Puts into a bound query what the container knows.
    pub(crate) fn resolve(&self, query: &mut Query) -> Result<(), Failure> {
        self.query(query, &[ROOT.to_owned()])
    }

    /// `roots` are the names that stand for the whole document.
    fn query(&self, query: &mut Query, roots: &[String]) -> Result<(), Failure> {
        let mut names = roots.to_vec();
        for input in &mut query.from {
            let is_whole = match &mut input.collection {
                Collection::Path(expr) => {
                    input.mode == InputMode::Whole
                        && matches!(&expr.kind, Kind::Name(name) if names.contains(name))
                }
                Collection::Subquery(inner) => {
                    self.query(inner, &names)?;
                    false
                }
            };
            if let Some(name) = input.name().map(str::to_owned) {
                names.retain(|known| *known != name);
                if is_whole {
                    names.push(name);
                }
            }
        }
        let mut outcome = Ok(());
        query.each_expr_mut(&mut |expr| {
            if outcome.is_ok() {
                outcome = self.expr(expr, &names);
            }
        });
        outcome?;
        for key in &mut query.order_by {
            if let Some(distance) = distance_of(&key.expr) {
                if key.direction.is_some() {
                    return Err(Failure::bad_request(
                        "Specifying a sorting order (ASC or DESC) with VectorDistance function is not supported.",
                    ));
                }
                key.direction = Some(distance.nearest_first());
            }
            if called_name(&key.expr) == Some("_VectorScore") {
                key.direction.get_or_insert(Direction::Descending);
            }
            if let Kind::Computed(name, _) = &key.expr.kind
                && !self.computed.iter().any(|known| known.name == *name && known.is_indexed)
            {
                return Err(Failure::bad_request(
                    "The index path corresponding to the specified order-by item is excluded.",
                ));
            }
        }
        Ok(())
    }

    fn expr(&self, expr: &mut Expr, roots: &[String]) -> Result<(), Failure> {
        if let Kind::Subquery(_, query) = &mut expr.kind {
            return self.query(query, roots);
        }
        if let [Step::Property(name)] = path_of(expr, roots).unwrap_or_default().as_slice()
            && let Some(known) = self.computed.iter().find(|known| known.name == **name)
        {
            let kind = Kind::Computed(known.name.clone(), Box::new(known.expr.clone()));
            *expr = Expr::new(kind, expr.span);
            return Ok(());
        }
        let mut outcome = Ok(());
        expr.each_child_mut(&mut |child| {
            if outcome.is_ok() {
                outcome = self.expr(child, roots);
            }
        });
        outcome?;
        if let Kind::Call(Callee::Builtin(function), _, arguments) = &mut expr.kind {
            match function.name {
                "VectorDistance" | "_VectorScore" => self.choose_distance(arguments, roots),
                name if name.contains("FullText") => self.choose_language(arguments, roots),
                _ => {}
            }
        }
        Ok(())
    }

    /// Says in which language a text is, where that is not English.
    fn choose_language(&self, arguments: &mut Vec<Expr>, roots: &[String]) {
        let path = arguments.first().and_then(|text| path_of(text, roots));
        let known = self.texts.iter().find(|(known, _)| Some(known) == path.as_ref());
        let tag = known.map(|(_, tag)| tag).or(self.language.as_ref());
        if let Some(tag) = tag.filter(|tag| Language::by_tag(tag) != Language::English) {
            arguments.push(Expr::literal(json!({ LANGUAGE: tag })));
        }
    }

    /// Says how vectors are compared where the call does not: as the container's policy has it for their path.
    fn choose_distance(&self, arguments: &mut Vec<Expr>, roots: &[String]) {
        let told = arguments.get(3).and_then(Expr::as_literal);
        if arguments.len() > 3 && told.is_none_or(|told| told.get("distanceFunction").is_some()) {
            return;
        }
        let paths: Vec<Path> = arguments.iter().take(2).filter_map(|side| path_of(side, roots)).collect();
        let known = self.vectors.iter().find(|(path, _)| paths.contains(path));
        let Some((_, distance)) = known else { return };
        let mut options = told.cloned().unwrap_or_else(|| json!({}));
        options["distanceFunction"] = distance.name().into();
        arguments.truncate(3);
        if arguments.len() == 2 {
            arguments.push(Expr::literal(false));
        }
        arguments.push(Expr::literal(options));
    }
}

fn is_distance(function: &Function) -> bool {
    function.name == "VectorDistance"
}

/// The built-in function that an expression calls.
fn called_name(expr: &Expr) -> Option<&'static str> {
    match &expr.kind {
        Kind::Call(Callee::Builtin(function), ..) => Some(function.name),
        _ => None,
    }
}

/// Whether an expression scores documents for an order that no index has.
pub(crate) fn is_score(expr: &Expr) -> bool {
    matches!(called_name(expr), Some("VectorDistance" | "_VectorScore" | "_FullTextScore"))
}

/// Whether an expression compares vectors.
pub(crate) fn is_vector_distance(expr: &Expr) -> bool {
    matches!(&expr.kind, Kind::Call(Callee::Builtin(function), ..) if is_distance(function))
}

/// Whether an expression is a property that a container computes.
pub(crate) fn is_computed(expr: &Expr) -> bool {
    matches!(expr.kind, Kind::Computed(..))
}

/// How an expression compares vectors, if it does.
pub(crate) fn distance_of(expr: &Expr) -> Option<Distance> {
    let Kind::Call(Callee::Builtin(function), _, arguments) = &expr.kind else { return None };
    if !is_distance(function) {
        return None;
    }
    let told = arguments.get(3).and_then(Expr::as_literal).and_then(|told| told["distanceFunction"].as_str());
    Some(told.and_then(Distance::by_name).unwrap_or(Distance::Cosine))
}

/// The place in the document that an expression names.
fn path_of(expr: &Expr, roots: &[String]) -> Option<Path> {
    match &expr.kind {
        Kind::Name(name) => roots.contains(name).then(Path::new),
        Kind::Property(base, name) => {
            let mut path = path_of(base, roots)?;
            path.push(Step::Property(name.as_str().into()));
            Some(path)
        }
        Kind::Index(base, index) => {
            let mut path = path_of(base, roots)?;
            path.push(Step::Property(index.as_literal()?.as_str()?.into()));
            Some(path)
        }
        _ => None,
    }
}

/// `/a/b` as a path.
fn plain_path(text: &str) -> Path {
    let names = text.split('/').filter(|name| !name.is_empty());
    names.map(|name| Step::Property(name.trim_matches('"').into())).collect()
}

fn computed(body: &Value) -> Result<Vec<Computed>, Failure> {
    let wrong = |why: &str| {
        Failure::bad_request(format!("The computed properties of the container are invalid: {why}."))
    };
    let list = match &body["computedProperties"] {
        Value::Null => return Ok(Vec::new()),
        Value::Array(list) => list,
        _ => {
            return Err(wrong(
                "One of the specified inputs is invalid, they must be an array of objects with 'name' and 'query'",
            ));
        }
    };
    if list.len() > COMPUTED_MAX {
        return Err(wrong(&format!("a container has at most {COMPUTED_MAX} of them")));
    }
    let mut all: Vec<Computed> = Vec::with_capacity(list.len());
    for property in list {
        let (Some(name), Some(text)) = (property["name"].as_str(), property["query"].as_str()) else {
            return Err(wrong("each needs a 'name' and a 'query'"));
        };
        let is_reserved = name.is_empty() || name == "id" || name.starts_with('_') || name.contains('/');
        if is_reserved || all.iter().any(|known| known.name == name) {
            return Err(wrong(&format!("the name '{name}' is empty, reserved or there already")));
        }
        let query = super::parse(text)?;
        let expr = value_of(&query).ok_or_else(|| {
            wrong(&format!("the query of '{name}' must be SELECT VALUE <expression> FROM <alias>"))
        })?;
        let paths = body["indexingPolicy"]["includedPaths"].as_array();
        let is_named = |path: &str| path == format!("/{name}/?") || path == format!("/{name}/*");
        let is_indexed = paths.into_iter().flatten().any(|path| path["path"].as_str().is_some_and(is_named));
        all.push(Computed { name: name.to_owned(), expr, is_indexed });
    }
    Ok(all)
}

/// The expression of `SELECT VALUE <expression> FROM <alias>`, over the whole document.
fn value_of(query: &Query) -> Option<Expr> {
    let is_bare = query.distinct.is_none()
        && query.top.is_none()
        && query.filter.is_none()
        && query.group_by.is_empty()
        && query.order_by.is_empty()
        && query.rank.is_none()
        && query.offset_limit.is_none();
    let bound = super::bind::bind(query, &[]).ok().filter(|_| is_bare)?;
    let [input] = bound.from.as_slice() else { return None };
    let alias = input.name()?.to_owned();
    let is_root = matches!(&input.collection, Collection::Path(path) if matches!(path.kind, Kind::Name(_)));
    let Select::Value(mut expr) = bound.select else { return None };
    if !is_root || input.mode != InputMode::Whole || expr.has_aggregate() {
        return None;
    }
    rename(&mut expr, &alias).then_some(expr)
}

/// Replaces an alias by the whole document; false where a query inside would see another.
fn rename(expr: &mut Expr, alias: &str) -> bool {
    match &mut expr.kind {
        Kind::Name(name) if name == alias => ROOT.clone_into(name),
        Kind::Subquery(..) => return false,
        _ => {}
    }
    let mut is_whole = true;
    expr.each_child_mut(&mut |child| is_whole &= rename(child, alias));
    is_whole
}
