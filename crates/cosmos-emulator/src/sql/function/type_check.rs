//! IS_* functions: always a boolean, also for undefined.

use serde_json::Value;

use super::{Arguments, Function};

pub(super) const FUNCTIONS: &[Function] = &[
    Function::pure("IS_DEFINED", 1, 1, |arguments| Some(arguments.value(0).is_some().into())),
    Function::pure("IS_NULL", 1, 1, |arguments| check(arguments, Value::is_null)),
    Function::pure("IS_BOOL", 1, 1, |arguments| check(arguments, Value::is_boolean)),
    Function::pure("IS_NUMBER", 1, 1, |arguments| check(arguments, Value::is_number)),
    Function::pure("IS_STRING", 1, 1, |arguments| check(arguments, Value::is_string)),
    Function::pure("IS_ARRAY", 1, 1, |arguments| check(arguments, Value::is_array)),
    Function::pure("IS_OBJECT", 1, 1, |arguments| check(arguments, Value::is_object)),
    Function::pure("IS_PRIMITIVE", 1, 1, |arguments| {
        check(arguments, |value| !value.is_array() && !value.is_object())
    }),
    Function::pure("IS_FINITE_NUMBER", 1, 1, |arguments| {
        check(arguments, |value| value.as_f64().is_some_and(f64::is_finite))
    }),
    Function::pure("IS_INTEGER", 1, 1, |arguments| Some(arguments.integer(0).is_some().into())),
];

fn check(arguments: &Arguments<'_>, test: fn(&Value) -> bool) -> Option<Value> {
    Some(arguments.value(0).is_some_and(test).into())
}
