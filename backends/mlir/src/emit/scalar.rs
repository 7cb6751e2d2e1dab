//! Scalar functions of the ops in the dialects `arith` and `math`, on single elements or on vectors.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use super::arith::{Item, Scalars, stored};
use super::math;

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

impl Scalars<'_> {
    /// A scalar function. Functions of 16-bit floats are computed in f32 and rounded.
    ///
    /// # Errors
    /// Why it is not supported.
    pub fn apply(&mut self, f: ScalarOp, args: &[Item]) -> Result<Item, String> {
        if let ScalarOp::Cast(to) = f {
            return self.cast(&args[0], to);
        }
        let operand = args.last().map_or(DType::F32, |a| a.dtype);
        if !is_half(operand) || f == ScalarOp::Select {
            return self.exact(f, args);
        }
        let wide: Vec<Item> = args.iter().map(|a| self.convert("extf", a, DType::F32)).collect();
        let y = self.exact(f, &wide)?;
        Ok(if y.dtype == DType::F32 { self.convert("truncf", &y, operand) } else { y })
    }

    fn exact(&mut self, f: ScalarOp, args: &[Item]) -> Result<Item, String> {
        use ScalarOp::*;
        let x = &args[0];
        let dtype = args.last().map_or(DType::F32, |a| a.dtype);
        let y = args.get(1).unwrap_or(x);
        let (float, signed) = (dtype.is_float(), dtype.is_signed_int());
        let truth = dtype == DType::Bool;
        let none = || Err(format!("{f:?} of {dtype} is not supported by the MLIR printer"));
        if truth
            && !matches!(
                f,
                Not | BitwiseNot | And | Or | Xor | BitwiseAnd | BitwiseOr | BitwiseXor | Eq | Ne | Select | Max | Min
            )
        {
            return none();
        }
        let pick = |float_op: &'static str, signed_op: &'static str, unsigned_op: &'static str| match () {
            () if float => float_op,
            () if signed => signed_op,
            () => unsigned_op,
        };
        Ok(match f {
            Exp | Log | Sin | Cos | Tanh | Erf | Sigmoid if dtype == DType::F32 => match f {
                Exp => math::exp(self, x),
                Log => math::log(self, x),
                Sin => math::sin(self, x),
                Cos => math::cos(self, x),
                Tanh => math::tanh(self, x),
                Erf => math::erf(self, x),
                _ => math::sigmoid(self, x),
            },
            Exp | Log | Sin | Cos | Tanh | Erf | Sigmoid | Tan | Asin | Acos | Atan | Sinh | Cosh | Asinh | Acosh
            | Atanh | Pow => return none(),
            Sqrt if float => self.op("math.sqrt", &[x]),
            Rsqrt | Reciprocal if float => {
                let by = if f == Rsqrt { self.op("math.sqrt", &[x]) } else { x.clone() };
                let one = self.number(dtype, 1.0);
                self.op("arith.divf", &[&one, &by])
            }
            Sqrt | Rsqrt | Reciprocal => return none(),
            Ceil | Floor | Round if !float => x.clone(),
            Ceil => self.op("math.ceil", &[x]),
            Floor => self.op("math.floor", &[x]),
            Round => self.op("math.roundeven", &[x]),
            Neg if float => self.op("arith.negf", &[x]),
            Neg => self.negate(x),
            Abs if float => self.op("math.absf", &[x]),
            Abs if !signed => x.clone(),
            Abs => {
                let zero = self.number(dtype, 0.0);
                let (low, minus) = (self.compare("slt", x, &zero), self.negate(x));
                self.select(&low, &minus, x)
            }
            Sign => self.sign(x),
            Not | BitwiseNot => {
                let ones = self.number(
                    dtype,
                    if truth {
                        1.0
                    } else if signed {
                        -1.0
                    } else {
                        f64::INFINITY
                    },
                );
                self.op("arith.xori", &[x, &ones])
            }
            IsNan if float => self.compare("uno", x, x),
            IsInf if float => {
                let (abs, inf) = (self.op("math.absf", &[x]), self.number(dtype, f64::INFINITY));
                self.compare("oeq", &abs, &inf)
            }
            IsNan | IsInf => return none(),
            Add => self.op(pick("arith.addf", "arith.addi", "arith.addi"), &[x, y]),
            Sub => self.op(pick("arith.subf", "arith.subi", "arith.subi"), &[x, y]),
            Mul => self.op(pick("arith.mulf", "arith.muli", "arith.muli"), &[x, y]),
            Div if float => self.op("arith.divf", &[x, y]),
            Div => self.divide("div", x, y),
            Fmod | Mod if float => return none(),
            Fmod => self.divide("rem", x, y),
            Mod => self.modulo(x, y),
            Max => self.op(pick("arith.maximumf", "arith.maxsi", "arith.maxui"), &[x, y]),
            Min => self.op(pick("arith.minimumf", "arith.minsi", "arith.minui"), &[x, y]),
            And | BitwiseAnd => self.op("arith.andi", &[x, y]),
            Or | BitwiseOr => self.op("arith.ori", &[x, y]),
            Xor | BitwiseXor => self.op("arith.xori", &[x, y]),
            Shl | Shr => self.shift(f, x, y),
            Eq => self.compare(pick("oeq", "eq", "eq"), x, y),
            Ne => self.compare(pick("une", "ne", "ne"), x, y),
            Lt => self.compare(pick("olt", "slt", "ult"), x, y),
            Le => self.compare(pick("ole", "sle", "ule"), x, y),
            Gt => self.compare(pick("ogt", "sgt", "ugt"), x, y),
            Ge => self.compare(pick("oge", "sge", "uge"), x, y),
            Select => self.select(x, y, &args[2]),
            Cast(to) => self.cast(x, to)?,
        })
    }

    fn negate(&mut self, x: &Item) -> Item {
        let zero = self.number(x.dtype, 0.0);
        self.op("arith.subi", &[&zero, x])
    }

    /// -1, 0 or 1; propagates NaN.
    fn sign(&mut self, x: &Item) -> Item {
        let (zero, one) = (self.number(x.dtype, 0.0), self.number(x.dtype, 1.0));
        if x.dtype.is_int() && !x.dtype.is_signed_int() {
            return self.op("arith.minui", &[x, &one]);
        }
        let minus = self.number(x.dtype, -1.0);
        let (gt, lt) = if x.dtype.is_float() { ("ogt", "olt") } else { ("sgt", "slt") };
        let (above, below) = (self.compare(gt, x, &zero), self.compare(lt, x, &zero));
        let low = self.select(&below, &minus, x);
        self.select(&above, &one, &low)
    }

    /// Integer division or remainder towards zero; 0 if the divisor is 0. The minimum over -1 wraps.
    fn divide(&mut self, name: &str, x: &Item, y: &Item) -> Item {
        let (zero, one) = (self.number(x.dtype, 0.0), self.number(x.dtype, 1.0));
        let none = self.compare("eq", y, &zero);
        if !x.dtype.is_signed_int() {
            let by = self.select(&none, &one, y);
            let q = self.op(&format!("arith.{name}ui"), &[x, &by]);
            return self.select(&none, &zero, &q);
        }
        let minus_one = self.number(x.dtype, -1.0);
        let negates = self.compare("eq", y, &minus_one);
        let odd = self.op("arith.ori", &[&none, &negates]);
        let by = self.select(&odd, &one, y);
        let q = self.op(&format!("arith.{name}si"), &[x, &by]);
        let negated = if name == "div" { self.negate(x) } else { zero.clone() };
        let q = self.select(&negates, &negated, &q);
        self.select(&none, &zero, &q)
    }

    /// The remainder with the sign of the divisor.
    fn modulo(&mut self, x: &Item, y: &Item) -> Item {
        let r = self.divide("rem", x, y);
        if !x.dtype.is_signed_int() {
            return r;
        }
        let zero = self.number(x.dtype, 0.0);
        let (some, low) = (self.compare("ne", &r, &zero), self.compare("slt", &r, &zero));
        let by_low = self.compare("slt", y, &zero);
        let differ = self.op("arith.xori", &[&low, &by_low]);
        let shift = self.op("arith.andi", &[&some, &differ]);
        let shifted = self.op("arith.addi", &[&r, y]);
        self.select(&shift, &shifted, &r)
    }

    /// Shifts by the bit width or more give 0, or -1 for an arithmetic shift of a negative number.
    fn shift(&mut self, f: ScalarOp, x: &Item, y: &Item) -> Item {
        let bits = self.number(x.dtype, x.dtype.bits().unwrap_or(64) as f64);
        let (zero, inside) = (self.number(x.dtype, 0.0), self.compare("ult", y, &bits));
        let by = self.select(&inside, y, &zero);
        let (op, beyond) = match (f, x.dtype.is_signed_int()) {
            (ScalarOp::Shl, _) => ("arith.shli", zero),
            (_, false) => ("arith.shrui", zero),
            (_, true) => {
                let (minus, low) = (self.number(x.dtype, -1.0), self.compare("slt", x, &zero));
                ("arith.shrsi", self.select(&low, &minus, &zero))
            }
        };
        let shifted = self.op(op, &[x, &by]);
        self.select(&inside, &shifted, &beyond)
    }

    /// To another element type: floats to integers truncate and saturate, NaN becomes 0.
    ///
    /// # Errors
    /// Conversions that round twice.
    pub fn cast(&mut self, x: &Item, to: DType) -> Result<Item, String> {
        let from = x.dtype;
        stored(to)?;
        if from == to {
            return Ok(x.clone());
        }
        if to == DType::Bool {
            let zero = self.number(from, 0.0);
            return Ok(self.compare(if from.is_float() { "une" } else { "ne" }, x, &zero));
        }
        if is_half(to) {
            if from == DType::F64 || (to == DType::BF16 && from.is_int() && from.bits().is_some_and(|b| b > 16)) {
                return Err(format!("the conversion of {from} to {to} would round twice"));
            }
            let wide = self.cast(x, DType::F32)?;
            return Ok(self.convert("truncf", &wide, to));
        }
        let signed = from.is_signed_int();
        let (a, b) = (from.bits().unwrap_or(8), to.bits().unwrap_or(8));
        Ok(match (from.is_float(), to.is_float()) {
            (true, true) => self.convert(if a < b { "extf" } else { "truncf" }, x, to),
            (false, true) => self.convert(if signed { "sitofp" } else { "uitofp" }, x, to),
            (true, false) => self.truncated(x, to),
            (false, false) if from == DType::Bool => self.convert("extui", x, to),
            (false, false) if a == b => Item { name: x.name.clone(), dtype: to },
            (false, false) if a > b => self.convert("trunci", x, to),
            (false, false) => self.convert(if signed { "extsi" } else { "extui" }, x, to),
        })
    }

    fn truncated(&mut self, x: &Item, to: DType) -> Item {
        if is_half(x.dtype) {
            let wide = self.convert("extf", x, DType::F32);
            return self.truncated(&wide, to);
        }
        let (low, high) = to.int_range().unwrap_or((0, 0));
        let (bottom, top) = (self.number(x.dtype, low as f64), self.number(x.dtype, high as f64));
        let (under, over) = (self.compare("ole", x, &bottom), self.compare("oge", x, &top));
        let nan = self.compare("uno", x, x);
        let odd = self.op("arith.ori", &[&under, &over]);
        let odd = self.op("arith.ori", &[&odd, &nan]);
        let zero = self.number(x.dtype, 0.0);
        let safe = self.select(&odd, &zero, x);
        let y = self.convert(if low < 0 { "fptosi" } else { "fptoui" }, &safe, to);
        let (least, most) = (self.number(to, low as f64), self.number(to, f64::INFINITY));
        let y = self.select(&over, &most, &y);
        self.select(&under, &least, &y)
    }
}
