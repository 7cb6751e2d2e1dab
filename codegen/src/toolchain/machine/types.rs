//! Types of the kernel language.

/// A type without its pointers. Vectors have 32-bit lanes; masks are integers of which all bits are set or clear.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names of the language")]
pub enum Base {
    Void,
    I8,
    U8,
    I16,
    U16,
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
    /// A vector of f32.
    Vf,
    /// A vector of i32.
    Vi,
    /// A vector of u32.
    Vu,
    /// A vector of f64.
    Vd,
    /// A vector of u64.
    Vl,
}

/// A type: a base, and how many pointers lead to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Type {
    /// What is pointed to in the end.
    pub base: Base,
    /// Number of pointers.
    pub pointers: u8,
}

/// 32-bit integers.
pub const I32: Type = Type::of(Base::I32);
/// 64-bit integers.
pub const I64: Type = Type::of(Base::I64);
/// Vectors of floats.
pub const VF: Type = Type::of(Base::Vf);
/// Vectors of f64.
pub const VD: Type = Type::of(Base::Vd);
/// Vectors of u64.
pub const VL: Type = Type::of(Base::Vl);
/// Vectors of integers.
pub const VI: Type = Type::of(Base::Vi);
/// No value.
pub const VOID: Type = Type::of(Base::Void);
/// 32-bit floats.
pub const F32: Type = Type::of(Base::F32);

impl Type {
    /// A base as a type.
    pub const fn of(base: Base) -> Type {
        Type { base, pointers: 0 }
    }

    /// The type called `name`.
    pub fn named(name: &str) -> Option<Type> {
        use Base::*;
        Some(Type::of(match name {
            "void" => Void,
            "i8" => I8,
            "u8" | "b8" => U8,
            "i16" => I16,
            "u16" | "f16" | "bf16" => U16,
            "i32" | "int" => I32,
            "u32" => U32,
            "i64" => I64,
            "u64" => U64,
            "f32" | "float" => F32,
            "f64" => F64,
            "vf" => Vf,
            "vi" | "mask" => Vi,
            "vu" => Vu,
            "vd" => Vd,
            "vlu" => Vl,
            _ => return None,
        }))
    }

    /// A pointer to it.
    pub fn pointer(self) -> Type {
        Type { pointers: self.pointers + 1, ..self }
    }

    /// What it points to.
    pub fn pointee(self) -> Option<Type> {
        (self.pointers > 0).then(|| Type { pointers: self.pointers - 1, ..self })
    }

    /// Whether it is a vector.
    pub fn is_vector(self) -> bool {
        self.pointers == 0 && matches!(self.base, Base::Vf | Base::Vi | Base::Vu | Base::Vd | Base::Vl)
    }

    /// Whether it is a vector of 32-bit integers.
    pub fn is_int_vector(self) -> bool {
        self.pointers == 0 && matches!(self.base, Base::Vi | Base::Vu)
    }

    /// Whether it is a single float.
    pub fn is_float(self) -> bool {
        self.pointers == 0 && matches!(self.base, Base::F32 | Base::F64)
    }

    /// Whether it is f64.
    pub fn is_double(self) -> bool {
        self == Type::of(Base::F64)
    }

    /// Whether it is an integer or a pointer.
    pub fn is_int(self) -> bool {
        self.pointers > 0 || !matches!(self.base, Base::Void | Base::F32 | Base::F64) && !self.is_vector()
    }

    /// Whether integers are signed.
    pub fn is_signed(self) -> bool {
        self.pointers == 0 && matches!(self.base, Base::I8 | Base::I16 | Base::I32 | Base::I64)
    }

    /// Bytes of a value, where vectors have `vector` bytes.
    pub fn size(self, vector: usize) -> usize {
        use Base::*;
        match self.base {
            _ if self.pointers > 0 => 8,
            Void | I8 | U8 => 1,
            I16 | U16 => 2,
            I32 | U32 | F32 => 4,
            I64 | U64 | F64 => 8,
            Vf | Vi | Vu | Vd | Vl => vector,
        }
    }

    /// The type of integers in arithmetic.
    pub fn promoted(self) -> Type {
        if self.is_int() && self.size(0) < 4 { I32 } else { self }
    }

    /// The type of the arithmetic of two numbers.
    pub fn common(self, other: Type) -> Type {
        use Base::*;
        let (a, b) = (self.promoted(), other.promoted());
        for base in [F64, F32, U64, I64, U32] {
            let t = Type::of(base);
            if a == t || b == t {
                return t;
            }
        }
        a
    }
}
