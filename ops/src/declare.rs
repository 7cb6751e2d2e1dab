//! The `op!` macro: an op's name, documentation, operands, results and typed attributes in one place.

/// Declares an op as a struct whose fields are its attributes.
///
/// ```text
/// op! {
///     /// One line, then the formula and its source.
///     pub struct Conv = "of.conv" [Composite, onnx: "Conv"] {
///         operands: (x, w, bias?),       // `name`, `name?` optional, `name*` variadic (last)
///         results: (y),
///         regions: 0,                    // may be left out
///         traits: { effect: true },      // may be left out
///         attrs: { strides: Vec<i64>, group: i64 },   // may be empty; Option<T> for those that may be absent
///     }
/// }
/// impl Op for Conv { op_basics!(Conv); fn infer… }
/// ```
#[macro_export]
macro_rules! op {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident = $opname:literal [$kind:ident $(, onnx: $($onnx:literal)|+)?] {
            operands: ($($operands:tt)*),
            results: ($($results:tt)*),
            $(regions: $regions:literal,)?
            $(traits: { $($trait:ident: $tval:expr),* $(,)? },)?
            attrs: { $($(#[doc = $adoc:literal])* $attr:ident: $ty:ty),* $(,)? } $(,)?
        }
        samples: |$seed:ident| $samples:expr;
        $(constant: |$attrs:ident| $constant:expr;)?
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, PartialEq, Debug)]
        pub struct $name { $($(#[doc = $adoc])* #[allow(missing_docs, reason = "ONNX documents attributes that have no comment")] pub $attr: $ty,)* }

        impl $crate::OpSpec for $name {
            const NAME: &'static str = $opname;
            const DOC: &'static str = concat!($($doc, "\n"),*);
            const SIGNATURE: of_ir::Signature = of_ir::Signature {
                operands: $crate::op!(@slots [] $($operands)*),
                results: $crate::op!(@slots [] $($results)*),
                attrs: &[$(of_ir::AttrSlot {
                    name: $crate::attr_name(stringify!($attr)),
                    kind: <$ty as of_ir::AttrValue>::KIND,
                    optional: $crate::is_option(stringify!($ty)),
                }),*],
                regions: 0 $(+ $regions)?,
            };
            const TRAITS: of_ir::Traits = of_ir::Traits {
                $($($trait: $tval,)*)?
                ..of_ir::Traits { terminator: false, effect: false, constant: false }
            };
            const KIND: $crate::Kind = $crate::Kind::$kind;
            const ONNX: &'static [&'static str] = &[$($($onnx),+)?];
            const DECL: &'static dyn $crate::OpDecl = &$crate::Decl::<$name>::NEW;
            #[allow(unused_variables, reason = "some ops have no attributes or no sample")]
            fn from_attrs(attrs: &of_ir::Attrs) -> Result<Self, of_ir::OpError> {
                Ok($name { $($attr: attrs.typed($crate::attr_name(stringify!($attr)))?),* })
            }
            #[allow(unused_variables, reason = "some ops have no attributes or no sample")]
            fn sample($seed: u64) -> Option<(Vec<$crate::Value>, Self)> {
                $samples
            }
            $(fn constant($attrs: &of_ir::Attrs) -> Option<of_ir::Tensor> { $constant })?
        }

        impl of_ir::NewOp for $name {
            fn def(&self) -> &'static dyn of_ir::OpDef {
                <$name as $crate::OpSpec>::DECL.as_def()
            }
            fn into_attrs(self) -> of_ir::Attrs {
                self.attrs_of()
            }
        }

        impl $name {
            #[allow(unused_mut, dead_code, reason = "some ops have no attributes")]
            fn attrs_of(&self) -> of_ir::Attrs {
                let mut a = of_ir::Attrs::new();
                $(a.put($crate::attr_name(stringify!($attr)), self.$attr.clone());)*
                a
            }
        }
    };
    (@slots [$($done:expr,)*]) => { &[$($done),*] };
    (@slots [$($done:expr,)*] $n:ident ? $(, $($rest:tt)*)?) => {
        $crate::op!(@slots [$($done,)* of_ir::Slot { name: stringify!($n), arity: of_ir::Arity::Optional },] $($($rest)*)?)
    };
    (@slots [$($done:expr,)*] $n:ident * $(, $($rest:tt)*)?) => {
        $crate::op!(@slots [$($done,)* of_ir::Slot { name: stringify!($n), arity: of_ir::Arity::Variadic },] $($($rest)*)?)
    };
    (@slots [$($done:expr,)*] $n:ident $(, $($rest:tt)*)?) => {
        $crate::op!(@slots [$($done,)* of_ir::Slot { name: stringify!($n), arity: of_ir::Arity::One },] $($($rest)*)?)
    };
}

/// The two methods of [`crate::Op`] that every op made by [`crate::op!`] has alike.
#[macro_export]
macro_rules! op_basics {
    ($name:ident) => {
        fn decl(&self) -> &'static dyn $crate::OpDecl {
            <$name as $crate::OpSpec>::DECL
        }
        fn attrs(&self) -> of_ir::Attrs {
            self.attrs_of()
        }
    };
}

/// The name of an attribute in the text form: that of its field without the `r#` of a keyword.
pub const fn attr_name(field: &'static str) -> &'static str {
    match field.as_bytes() {
        [b'r', b'#', name @ ..] => match std::str::from_utf8(name) {
            Ok(name) => name,
            Err(_) => field,
        },
        _ => field,
    }
}

/// Whether a type's text names an `Option`.
pub const fn is_option(ty: &str) -> bool {
    let (b, o) = (ty.as_bytes(), b"Option");
    if b.len() < o.len() {
        return false;
    }
    let mut i = 0;
    while i < o.len() {
        if b[i] != o[i] {
            return false;
        }
        i += 1;
    }
    true
}
