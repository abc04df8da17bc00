//! ST_* functions over GeoJSON. Distances between points are geodesic on the WGS-84 ellipsoid; edges are straight in
//! longitude and latitude.

use serde_json::{Value, json};

use super::{Arguments, Function};
use crate::sql::value::number;

pub(super) const FUNCTIONS: &[Function] = &[
    Function::pure("ST_DISTANCE", 2, 2, |a| number(distance(&shape(a, 0)?, &shape(a, 1)?)?)),
    Function::pure("ST_AREA", 1, 1, |a| number(area(&shape(a, 0)?))),
    Function::pure("ST_WITHIN", 2, 2, |a| Some(is_within(&shape(a, 0)?, &shape(a, 1)?)?.into())),
    Function::pure("ST_INTERSECTS", 2, 2, |a| Some(intersects(&shape(a, 0)?, &shape(a, 1)?)?.into())),
    Function::pure("ST_ISVALID", 1, 1, |a| Some(Shape::read(a.value(0)?).is_ok().into())),
    Function::pure("ST_ISVALIDDETAILED", 1, 1, |a| {
        Some(match Shape::read(a.value(0)?) {
            Ok(_) => json!({"valid": true}),
            Err(reason) => json!({"valid": false, "reason": reason}),
        })
    }),
];

/// Most pairs of edges a function compares; beyond, its result is undefined.
const PAIRS_MAX: usize = 4_000_000;

/// Longitude and latitude in degrees.
type Place = (f64, f64);
type Edge = (Place, Place);

/// Any geometry: its single points, its lines, and the rings of its polygons, the outer ring first.
#[derive(Default)]
struct Shape {
    points: Vec<Place>,
    lines: Vec<Vec<Place>>,
    polygons: Vec<Vec<Vec<Place>>>,
}

fn shape(arguments: &Arguments<'_>, at: usize) -> Option<Shape> {
    Shape::read(arguments.value(at)?).ok()
}

impl Shape {
    fn read(value: &Value) -> Result<Self, &'static str> {
        let coordinates = value.get("coordinates").ok_or("The geometry has no coordinates.")?;
        let mut shape = Self::default();
        match value["type"].as_str() {
            Some("Point") => shape.points.push(place(coordinates)?),
            Some("MultiPoint") => shape.points = places(coordinates)?,
            Some("LineString") => shape.lines.push(line(coordinates)?),
            Some("MultiLineString") => {
                shape.lines = list(coordinates)?.iter().map(line).collect::<Result<_, _>>()?;
            }
            Some("Polygon") => shape.polygons.push(polygon(coordinates)?),
            Some("MultiPolygon") => {
                shape.polygons = list(coordinates)?.iter().map(polygon).collect::<Result<_, _>>()?;
            }
            _ => return Err("The type of the geometry is unknown."),
        }
        Ok(shape)
    }

    fn places(&self) -> impl Iterator<Item = Place> + '_ {
        let rings = self.polygons.iter().flatten().flatten();
        self.points.iter().chain(self.lines.iter().flatten()).chain(rings).copied()
    }

    fn edges(&self) -> impl Iterator<Item = Edge> + '_ {
        let rings = self.polygons.iter().flatten();
        self.lines.iter().chain(rings).flat_map(|line| line.windows(2).map(|pair| (pair[0], pair[1])))
    }

    /// Whether the place is in a polygon, its border included and its holes left out.
    fn covers(&self, at: Place) -> bool {
        self.polygons.iter().any(|rings| {
            let on_border =
                rings.iter().flat_map(|ring| ring.windows(2)).any(|pair| is_on(at, (pair[0], pair[1])));
            let inside = |ring: &Vec<Place>| is_inside(at, ring);
            on_border || (rings.first().is_some_and(inside) && !rings.iter().skip(1).any(inside))
        })
    }
}

/// Square metres inside of polygons whose edges are geodesics; nothing else has an area. A polygon whose outer ring runs
/// clockwise is everything but what it surrounds.
///
/// The ellipsoid is taken for the sphere of the same surface on which every zone between two parallels has its area.
fn area(shape: &Shape) -> f64 {
    let whole = 4.0 * std::f64::consts::PI * AUTHALIC_RADIUS.powi(2);
    let inside = |rings: &Vec<Vec<Place>>| {
        let outer = rings.first().map_or(0.0, |ring| ring_area(ring));
        let holes: f64 = rings.iter().skip(1).map(|ring| ring_area(ring).abs()).sum();
        if outer < 0.0 { whole + outer - holes } else { outer - holes }
    };
    shape.polygons.iter().map(inside).sum()
}

/// The area to the left of a ring, negative where that is outside.
fn ring_area(ring: &[Place]) -> f64 {
    let edges = ring.windows(2).map(|edge| {
        let (from, to) = (edge[0], edge[1]);
        let step = (to.0 - from.0).to_radians();
        let [a, b] = [from, to].map(|place| (authalic(place.1.to_radians()) / 2.0).tan());
        // The triangle between an edge and the equator.
        2.0 * ((step / 2.0).tan() * (a + b)).atan2(1.0 + a * b)
    });
    -edges.sum::<f64>() * AUTHALIC_RADIUS.powi(2)
}

/// The latitude on the sphere of equal surface.
fn authalic(latitude: f64) -> f64 {
    (zone(latitude.sin()) / zone(1.0)).clamp(-1.0, 1.0).asin()
}

/// What grows with the surface between the equator and a latitude of this sine.
fn zone(sine: f64) -> f64 {
    let eccentricity = ECCENTRICITY_SQUARED.sqrt();
    (1.0 - ECCENTRICITY_SQUARED)
        * (sine / (1.0 - ECCENTRICITY_SQUARED * sine * sine) + (eccentricity * sine).atanh() / eccentricity)
}

/// Of WGS-84.
const ECCENTRICITY_SQUARED: f64 = 0.006_694_379_990_141_317;
/// Of the sphere with the surface of the WGS-84 ellipsoid, in metres.
const AUTHALIC_RADIUS: f64 = 6_371_007.180_918_474;

fn list(value: &Value) -> Result<&Vec<Value>, &'static str> {
    value.as_array().ok_or("The coordinates have the wrong form.")
}

fn place(value: &Value) -> Result<Place, &'static str> {
    let [longitude, latitude, ..] = list(value)?.as_slice() else {
        return Err("A position needs a longitude and a latitude.");
    };
    let (Some(longitude), Some(latitude)) = (longitude.as_f64(), latitude.as_f64()) else {
        return Err("A position must be made of numbers.");
    };
    if longitude.abs() > 180.0 {
        return Err("Longitude values must be between -180 and 180 degrees.");
    }
    if latitude.abs() > 90.0 {
        return Err("Latitude values must be between -90 and 90 degrees.");
    }
    Ok((longitude, latitude))
}

fn places(value: &Value) -> Result<Vec<Place>, &'static str> {
    list(value)?.iter().map(place).collect()
}

fn line(value: &Value) -> Result<Vec<Place>, &'static str> {
    let line = places(value)?;
    if line.len() < 2 { Err("A line needs at least two positions.") } else { Ok(line) }
}

fn polygon(value: &Value) -> Result<Vec<Vec<Place>>, &'static str> {
    let rings: Vec<Vec<Place>> = list(value)?.iter().map(places).collect::<Result<_, _>>()?;
    if rings.is_empty() {
        return Err("A polygon needs at least one ring.");
    }
    for ring in &rings {
        if ring.len() < 4 {
            return Err("A ring of a polygon needs at least four positions.");
        }
        if ring.first() != ring.last() {
            return Err("The first and the last position of a ring must be the same.");
        }
    }
    Ok(rings)
}

/// Whether comparing every edge with every edge stays within bounds.
fn is_comparable(left: &Shape, right: &Shape) -> bool {
    let size = |shape: &Shape| shape.places().count();
    size(left).saturating_mul(size(right)) <= PAIRS_MAX
}

fn intersects(left: &Shape, right: &Shape) -> Option<bool> {
    if !is_comparable(left, right) {
        return None;
    }
    let touches = |one: &Shape, other: &Shape| {
        one.places().any(|at| other.covers(at) || other.edges().any(|edge| is_on(at, edge)))
    };
    let same_point = left.points.iter().any(|at| right.points.contains(at));
    let crosses = || left.edges().any(|a| right.edges().any(|b| do_cross(a, b)));
    Some(same_point || touches(left, right) || touches(right, left) || crosses())
}

fn is_within(inner: &Shape, outer: &Shape) -> Option<bool> {
    if !is_comparable(inner, outer) {
        return None;
    }
    let crosses = || inner.edges().any(|a| outer.edges().any(|b| do_cross(a, b)));
    Some(inner.places().all(|at| outer.covers(at)) && !crosses())
}

fn distance(left: &Shape, right: &Shape) -> Option<f64> {
    if intersects(left, right)? {
        return Some(0.0);
    }
    let mut nearest = f64::INFINITY;
    for (one, other) in [(left, right), (right, left)] {
        for at in one.places() {
            for edge in other.edges() {
                nearest = nearest.min(geodesic(at, nearest_on(at, edge)));
            }
            for point in &other.points {
                nearest = nearest.min(geodesic(at, *point));
            }
        }
    }
    nearest.is_finite().then_some(nearest)
}

/// Twice the signed area of a triangle: on which side of an edge a place lies.
fn side(edge: Edge, at: Place) -> f64 {
    let ((ax, ay), (bx, by)) = edge;
    (bx - ax) * (at.1 - ay) - (by - ay) * (at.0 - ax)
}

fn is_on(at: Place, edge: Edge) -> bool {
    let ((ax, ay), (bx, by)) = edge;
    side(edge, at).abs() < 1e-12
        && (ax.min(bx)..=ax.max(bx)).contains(&at.0)
        && (ay.min(by)..=ay.max(by)).contains(&at.1)
}

/// Whether two edges cross in their insides.
fn do_cross(a: Edge, b: Edge) -> bool {
    side(a, b.0) * side(a, b.1) < 0.0 && side(b, a.0) * side(b, a.1) < 0.0
}

fn is_inside(at: Place, ring: &[Place]) -> bool {
    let mut inside = false;
    for pair in ring.windows(2) {
        let ((ax, ay), (bx, by)) = (pair[0], pair[1]);
        if (ay > at.1) != (by > at.1) && at.0 < (bx - ax) * (at.1 - ay) / (by - ay) + ax {
            inside = !inside;
        }
    }
    inside
}

/// The place of an edge nearest to `at`, in a plane scaled by its latitude.
fn nearest_on(at: Place, edge: Edge) -> Place {
    let scale = at.1.to_radians().cos().max(1e-6);
    let ((ax, ay), (bx, by)) = edge;
    let (dx, dy) = ((bx - ax) * scale, by - ay);
    let (px, py) = ((at.0 - ax) * scale, at.1 - ay);
    let length = dx * dx + dy * dy;
    let along = if length == 0.0 { 0.0 } else { ((px * dx + py * dy) / length).clamp(0.0, 1.0) };
    (ax + (bx - ax) * along, ay + (by - ay) * along)
}

/// Metres between two places by Vincenty's formula; on a sphere where it does not settle (nearly opposite places).
fn geodesic(from: Place, to: Place) -> f64 {
    const MAJOR: f64 = 6_378_137.0;
    const FLATTENING: f64 = 1.0 / 298.257_223_563;
    const MINOR: f64 = MAJOR * (1.0 - FLATTENING);
    let reduced = |latitude: f64| ((1.0 - FLATTENING) * latitude.to_radians().tan()).atan().sin_cos();
    let ((sin_u1, cos_u1), (sin_u2, cos_u2)) = (reduced(from.1), reduced(to.1));
    let longitude = (to.0 - from.0).to_radians();
    let mut lambda = longitude;
    for _ in 0..200 {
        let (sin_lambda, cos_lambda) = lambda.sin_cos();
        let sin_sigma = (cos_u2 * sin_lambda).hypot(cos_u1 * sin_u2 - sin_u1 * cos_u2 * cos_lambda);
        if sin_sigma == 0.0 {
            return 0.0;
        }
        let cos_sigma = sin_u1 * sin_u2 + cos_u1 * cos_u2 * cos_lambda;
        let sigma = sin_sigma.atan2(cos_sigma);
        let sin_alpha = cos_u1 * cos_u2 * sin_lambda / sin_sigma;
        let cos2_alpha = 1.0 - sin_alpha * sin_alpha;
        let cos_2m = if cos2_alpha == 0.0 { 0.0 } else { cos_sigma - 2.0 * sin_u1 * sin_u2 / cos2_alpha };
        let c = FLATTENING / 16.0 * cos2_alpha * (4.0 + FLATTENING * (4.0 - 3.0 * cos2_alpha));
        let inner = cos_2m + c * cos_sigma * (2.0 * cos_2m * cos_2m - 1.0);
        let next = longitude + (1.0 - c) * FLATTENING * sin_alpha * (sigma + c * sin_sigma * inner);
        if (next - lambda).abs() < 1e-12 {
            let u2 = cos2_alpha * (MAJOR * MAJOR - MINOR * MINOR) / (MINOR * MINOR);
            let a = 1.0 + u2 / 16_384.0 * (4096.0 + u2 * (-768.0 + u2 * (320.0 - 175.0 * u2)));
            let b = u2 / 1024.0 * (256.0 + u2 * (-128.0 + u2 * (74.0 - 47.0 * u2)));
            let square = 2.0 * cos_2m * cos_2m - 1.0;
            let third =
                b / 6.0 * cos_2m * (4.0 * sin_sigma * sin_sigma - 3.0) * (4.0 * cos_2m * cos_2m - 3.0);
            let delta = b * sin_sigma * (cos_2m + b / 4.0 * (cos_sigma * square - third));
            return MINOR * a * (sigma - delta);
        }
        lambda = next;
    }
    haversine(from, to)
}

fn haversine(from: Place, to: Place) -> f64 {
    const RADIUS: f64 = 6_371_008.8;
    let (latitude, longitude) = ((to.1 - from.1).to_radians(), (to.0 - from.0).to_radians());
    let a = (latitude / 2.0).sin().powi(2)
        + from.1.to_radians().cos() * to.1.to_radians().cos() * (longitude / 2.0).sin().powi(2);
    2.0 * RADIUS * a.sqrt().atan2((1.0 - a).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_geodesic() {
        // One degree along the equator, and a quarter of a meridian, on WGS-84.
        assert!((geodesic((0.0, 0.0), (1.0, 0.0)) - 111_319.491).abs() < 0.001);
        assert!((geodesic((0.0, 0.0), (0.0, 90.0)) - 10_001_965.729).abs() < 0.001);
        assert!(geodesic((5.0, 5.0), (5.0, 5.0)).abs() < 1e-9);
        assert!(geodesic((0.0, 0.0), (180.0, 0.0)).is_finite());
    }
}
