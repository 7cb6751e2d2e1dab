//! The words of the kernel language, and the functions that its texts may call.

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::toolchain::machine::lexer::{self, Name, Names, Token, mark};
use crate::toolchain::machine::types::Type;

macro_rules! words {
    ($($word:ident = $text:literal),* $(,)?) => {
        /// A word with a meaning of its own: a keyword, or a function that is translated to instructions.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[allow(missing_docs, reason = "the words themselves")]
        pub enum Word { $($word),* }

        const WORDS: &[(&str, Word)] = &[$(($text, Word::$word)),*];
    };
}

words! {
    If = "if", Else = "else", For = "for", While = "while", Return = "return", Continue = "continue", Break = "break",
    Const = "const", Static = "static", Restrict = "restrict", Ptr = "PTR", Arg = "ARG", Sizeof = "sizeof", Lanes = "LANES",
    Inf32 = "INF32", Nan32 = "NAN32", Inf64 = "INF64", Nan64 = "NAN64", Inff = "__builtin_inff",
    Splat = "SPLAT", SplatInt = "SPLATI", Load = "load", Store = "store", LoadPart = "load_part", StorePart = "store_part",
    LoadI8 = "load_i8", LoadU8 = "load_u8", LoadI16 = "load_i16", LoadU16 = "load_u16", LoadI32 = "load_i32",
    StoreI8 = "store_i8", StoreU8 = "store_u8", StoreI16 = "store_i16", StoreU16 = "store_u16", StoreI32 = "store_i32",
    LoadPartI8 = "load_part_i8", LoadPartU8 = "load_part_u8", LoadPartI16 = "load_part_i16", LoadPartU16 = "load_part_u16",
    LoadPartI32 = "load_part_i32", StorePartI8 = "store_part_i8", StorePartU8 = "store_part_u8",
    StorePartI16 = "store_part_i16", StorePartU16 = "store_part_u16", StorePartI32 = "store_part_i32",
    LoadF16 = "load_f16", StoreF16 = "store_f16", WidenF16 = "widen_f16", NarrowF16 = "narrow_f16",
    FirstLanes = "head_mask", Shuffle = "SHUFFLE", Permute = "permute", Pick = "pick", PickInt = "ipick", MaxInt = "imax", MinInt = "imin",
    HwMax = "hwmax", HwMin = "hwmin", Sqrt = "vsqrt", Round = "vround", Floor = "vfloor", Ceil = "vceil", Any = "vany",
    Rounded = "vrounded", OneSum = "one_sum", OneDifference = "one_difference",
    RoundToInt = "round_to_int", Estimate = "reciprocal_estimate", Scale = "scale_exponent", Convert = "__builtin_convertvector",
    Prefetch = "__builtin_prefetch", Word4 = "word", Dot2 = "dot2", BytePairs = "byte_pairs", DotBytes = "dot4_bytes", DotBf16 = "dot2_bf16",
    TileConfig = "tile_config", TileRelease = "tile_release", TileZero = "tile_zero", TileLoad = "tile_load",
    TileStore = "tile_store", TileDotSigned = "tile_dot_signed", TileDotUnsigned = "tile_dot_unsigned",
    Exchange = "exchange", Spare = "spare", Lane = "LANE", Bits = "BITS", Float = "FLOAT", ToInt = "TO_INT", ToFloat = "TO_FLOAT",
    AnyLane = "ANY", Part = "PART", WithPart = "WITH_PART", Parts = "PARTS", ToF64 = "TO_F64", FromF64 = "FROM_F64",
    LanesOfF64 = "lanes_of_f64", HasAvx512 = "HAS_AVX512", HasVnni = "HAS_VNNI", BitsOfF32 = "bits_of_f32", BitsOfF64 = "bits_of_f64",
}

impl Word {
    /// The word that a name is.
    pub fn of(name: Name) -> Option<Word> {
        WORDS.get(name as usize).map(|w| w.1)
    }
}

/// What every text may use.
pub struct Language {
    /// Names; words come first.
    pub names: Names,
    /// The tokens of all functions.
    pub tokens: Vec<Token>,
    /// The types by name.
    pub types: HashMap<Name, Type>,
    /// Where functions begin: the types of their results.
    pub functions: HashMap<Name, usize>,
}

/// The functions that the printers' texts call, in terms of words and of each other; later ones replace earlier ones.
const FUNCTIONS: &[&str] =
    &[include_str!("../../print/c/prelude.c"), include_str!("../../print/functions.c"), include_str!("functions.c")];

/// The language with its functions.
pub static LANGUAGE: LazyLock<Language> = LazyLock::new(|| {
    let (mut names, mut tokens) = (Names::default(), Vec::new());
    for (text, _) in WORDS {
        names.number(text);
    }
    for text in FUNCTIONS {
        // Our own texts consist of tokens; what were none would be a missing function of a kernel.
        let _ = lexer::tokens(text, &mut names, &mut tokens);
    }
    const TYPES: &[&str] = &[
        "void", "i8", "u8", "b8", "i16", "u16", "f16", "bf16", "i32", "int", "u32", "i64", "u64", "f32", "float",
        "f64", "vf", "vi", "mask", "vu", "vd", "vlu",
    ];
    let types = TYPES.iter().filter_map(|t| Some((names.number(t), Type::named(t)?))).collect();
    let markers = ["INLINE", "CALLED"].map(|m| names.find(m));
    let mut functions = HashMap::new();
    for (i, _) in tokens.iter().enumerate().filter(|(_, t)| matches!(t, Token::Name(n) if markers.contains(&Some(*n))))
    {
        let pointer = usize::from(tokens[i + 2] == Token::Mark(mark("*")));
        if let (Token::Name(name), Token::Mark(m)) = (tokens[i + 2 + pointer], tokens[i + 3 + pointer])
            && m == mark("(")
        {
            functions.insert(name, i + 1);
        }
    }
    Language { names, tokens, types, functions }
});
