//! One machine: what it may take, and how it is called. Values go in and out as JSON.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rquickjs::{CatchResultExt, CaughtError, Context, Ctx, Function, Runtime};

use crate::Failure;

/// Most memory of a machine.
const MEMORY_BYTES_MAX: usize = 64 << 20;
/// Most stack; threads that run scripts have several times as much.
const STACK_BYTES_MAX: usize = 256 << 10;
/// How long one call into a machine may take.
const CALL_TIME_MAX: Duration = Duration::from_secs(5);

/// A JavaScript machine.
pub(crate) struct Machine {
    context: Context,
    /// Until when the current call may take.
    deadline: Rc<Cell<Instant>>,
}

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Machine").finish_non_exhaustive()
    }
}

/// Why a script did not end as it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It threw this, or is no script at all.
    Thrown(String),
    /// It took too long.
    Time,
    /// It took too much memory.
    Memory,
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Thrown(what) => Failure::bad_request(format!(
                "Encountered exception while executing Javascript. Exception = {what}"
            )),
            Trouble::Time => Failure::new(
                408,
                "The script did not end in time. Let it do less at once, and go on with a continuation.",
            ),
            Trouble::Memory => Failure::bad_request(
                "Encountered exception while executing Javascript. Exception = InternalError: out of memory",
            ),
        }
    }
}

impl Machine {
    /// A machine that has run nothing yet.
    pub(crate) fn new() -> Result<Self, Trouble> {
        let runtime = Runtime::new().map_err(|_| Trouble::Memory)?;
        runtime.set_memory_limit(MEMORY_BYTES_MAX);
        runtime.set_max_stack_size(STACK_BYTES_MAX);
        let deadline = Rc::new(Cell::new(Instant::now() + CALL_TIME_MAX));
        let until = Rc::clone(&deadline);
        runtime.set_interrupt_handler(Some(Box::new(move || Instant::now() >= until.get())));
        let context = Context::full(&runtime).map_err(|_| Trouble::Memory)?;
        let machine = Self { context, deadline };
        machine.within(|context| context.eval::<(), _>(include_str!("prelude.js")))?;
        Ok(machine)
    }

    /// Calls a function of the prelude. All calls together may take as long as one, until [`Self::rest`].
    pub(crate) fn call(&self, name: &str, arguments: &[&str]) -> Result<String, Trouble> {
        self.within(|context| {
            let function: Function<'_> = context.globals().get(name)?;
            match *arguments {
                [] => function.call(()),
                [one] => function.call((one,)),
                [one, two] => function.call((one, two)),
                [one, two, three, ..] => function.call((one, two, three)),
            }
        })
    }

    /// Grants the next call its full time.
    pub(crate) fn rest(&self) {
        self.deadline.set(Instant::now() + CALL_TIME_MAX);
    }

    fn within<T>(&self, work: impl for<'js> FnOnce(&Ctx<'js>) -> rquickjs::Result<T>) -> Result<T, Trouble> {
        self.context.with(|context| work(&context).catch(&context).map_err(|error| self.trouble(&error)))
    }

    fn trouble(&self, error: &CaughtError<'_>) -> Trouble {
        if Instant::now() >= self.deadline.get() {
            return Trouble::Time;
        }
        let text = match error {
            CaughtError::Exception(exception) => {
                let name = exception.as_object().get::<_, String>("name").unwrap_or_default();
                let message = exception.message().unwrap_or_default();
                if name.is_empty() { message } else { format!("{name}: {message}") }
            }
            CaughtError::Value(value) => match value.as_string().and_then(|text| text.to_string().ok()) {
                Some(text) => text,
                None => format!("{value:?}"),
            },
            CaughtError::Error(error) => error.to_string(),
        };
        if text.contains("out of memory") { Trouble::Memory } else { Trouble::Thrown(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(source: &str, values: &str) -> Result<String, Trouble> {
        let machine = Machine::new()?;
        machine.call("hostDefine", &["f", source])?;
        machine.call("hostApply", &["f", values])
    }

    #[test]
    fn functions_take_and_give_values() {
        assert_eq!(apply("function (a, b) { return a + b; }", "[[1],[2]]"), Ok("3".to_owned()));
        assert_eq!(apply("(a) => a === undefined", "[[]]"), Ok("true".to_owned()));
        assert_eq!(apply("function () {}", "[]"), Ok(String::new()));
        assert_eq!(
            apply("function f() { return g(); }\nfunction g() { return {a: [null]}; }", "[]"),
            Ok(r#"{"a":[null]}"#.to_owned())
        );
    }

    #[test]
    fn what_is_thrown_is_told() {
        assert_eq!(
            apply("function () { throw new Error('no'); }", "[]"),
            Err(Trouble::Thrown("Error: no".to_owned()))
        );
        assert_eq!(apply("function () { throw 'no'; }", "[]"), Err(Trouble::Thrown("no".to_owned())));
        assert!(
            matches!(apply("function (", "[]"), Err(Trouble::Thrown(text)) if text.starts_with("SyntaxError"))
        );
        assert!(
            matches!(apply("5", "[]"), Err(Trouble::Thrown(text)) if text.contains("must be a function"))
        );
    }

    #[test]
    fn memory_and_stack_are_bounded() {
        assert_eq!(apply("function () { return 'x'.repeat(1e9); }", "[]"), Err(Trouble::Memory));
        assert_eq!(
            apply("function () { var a = []; for (;;) a.push(new ArrayBuffer(1 << 20)); }", "[]"),
            Err(Trouble::Memory)
        );
        assert!(matches!(apply("function f() { return f() + 1; }", "[]"), Err(Trouble::Thrown(_))));
    }

    #[test]
    fn a_script_without_end_ends() {
        let machine = Machine::new().expect("a machine");
        machine.deadline.set(Instant::now() + Duration::from_millis(50));
        let outcome = machine.call("hostStart", &["function () { while (true) {} }", "{}", "[]"]);
        assert_eq!(outcome, Err(Trouble::Time));
    }

    #[test]
    fn there_is_no_way_out() {
        for name in [
            "require",
            "process",
            "std",
            "os",
            "fetch",
            "XMLHttpRequest",
            "setTimeout",
            "Deno",
            "WebAssembly",
        ] {
            let source = format!("function () {{ return typeof {name}; }}");
            assert_eq!(apply(&source, "[]"), Ok("\"undefined\"".to_owned()), "{name}");
        }
        assert!(
            apply("function () { return import('fs'); }", "[]").is_ok_and(|text| text == "{}"),
            "a promise of nothing"
        );
    }
}
