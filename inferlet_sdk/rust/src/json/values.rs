//! Values of a program as JSON.

use std::collections::{BTreeMap, HashMap};

use super::Json;

/// What can be written as JSON: the result of a program, the arguments of a child.
pub trait ToJson {
    /// It as JSON.
    fn to_json(&self) -> Json;
}

macro_rules! to_json {
    ($($kind:ty: $value:ident => $json:expr;)*) => {$(
        impl ToJson for $kind {
            fn to_json(&self) -> Json {
                let $value = self;
                $json
            }
        }
        impl From<$kind> for Json {
            fn from(value: $kind) -> Json {
                value.to_json()
            }
        }
    )*};
}

to_json! {
    (): _one => Json::Null;
    bool: one => Json::Bool(*one);
    i8: one => Json::Int(i128::from(*one));
    u8: one => Json::Int(i128::from(*one));
    i16: one => Json::Int(i128::from(*one));
    u16: one => Json::Int(i128::from(*one));
    i32: one => Json::Int(i128::from(*one));
    u32: one => Json::Int(i128::from(*one));
    i64: one => Json::Int(i128::from(*one));
    u64: one => Json::Int(i128::from(*one));
    i128: one => Json::Int(*one);
    usize: one => Json::Int(*one as i128);
    f32: one => Json::Float(f64::from(*one));
    f64: one => Json::Float(*one);
    String: one => Json::Text(one.clone());
    &str: one => Json::Text((*one).to_string());
}

impl ToJson for Json {
    fn to_json(&self) -> Json {
        self.clone()
    }
}

impl<T: ToJson> ToJson for Option<T> {
    fn to_json(&self) -> Json {
        self.as_ref().map_or(Json::Null, ToJson::to_json)
    }
}

macro_rules! lists {
    ($([$($of:tt)*] $kind:ty;)*) => {$(
        impl<$($of)*> ToJson for $kind {
            fn to_json(&self) -> Json {
                Json::List(self.iter().map(ToJson::to_json).collect())
            }
        }
        impl<$($of)*> From<$kind> for Json {
            fn from(value: $kind) -> Json {
                value.to_json()
            }
        }
    )*};
}

lists! {
    [T: ToJson] Vec<T>;
    [T: ToJson] &[T];
    [T: ToJson, const N: usize] [T; N];
}

macro_rules! tuples {
    ($(($($kind:ident $place:tt),*);)*) => {$(
        impl<$($kind: ToJson),*> ToJson for ($($kind,)*) {
            fn to_json(&self) -> Json {
                Json::List(vec![$(self.$place.to_json()),*])
            }
        }
    )*};
}

tuples! {
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
}

impl<T: ToJson> ToJson for BTreeMap<String, T> {
    fn to_json(&self) -> Json {
        Json::object(self.iter().map(|(key, value)| (key.as_str(), value.to_json())))
    }
}

impl<T: ToJson, S> ToJson for HashMap<String, T, S> {
    fn to_json(&self) -> Json {
        let sorted: BTreeMap<&String, &T> = self.iter().collect(); // the same each time
        Json::object(sorted.into_iter().map(|(key, value)| (key.as_str(), value.to_json())))
    }
}
