//! Scalar programs as blocks.

use of_ir::DType;
use of_ops::scalar::ScalarOp;

use crate::kernel::body::{Body, Node};
use crate::kernel::float::{exact_reciprocal, is_float};
use crate::print::x86::block::{Block, Compare, Inst, Shift, Value, one, two};

/// The values of a body's nodes in a block.
pub struct Values<'b> {
    body: &'b Body,
    /// The value of each node, once it is needed.
    pub known: Vec<Option<Value>>,
}

impl<'b> Values<'b> {
    /// No values.
    pub fn new(body: &'b Body) -> Values<'b> {
        Values { body, known: vec![None; body.nodes.len()] }
    }

    /// The value of node `n`, whose operands are known or are constants and loads.
    ///
    /// # Errors
    /// When there is no code for it.
    pub fn get(&mut self, block: &mut Block, n: usize) -> Result<Value, String> {
        if let Some(v) = self.known[n] {
            return Ok(v);
        }
        let t = &self.body.nodes[n];
        let v = match &t.node {
            Node::Const(c) => block.bits(bits_of(*c, t.dtype)),
            Node::Load(l) => block.push(Inst::Load(*l)),
            Node::Op(op, args) => {
                let values = args.iter().map(|a| self.get(block, *a)).collect::<Result<Vec<_>, _>>()?;
                self.op(block, *op, args, &values)?
            }
            Node::Anchor | Node::Reduce(..) => return Err("a value of another stage is missing".into()),
        };
        self.known[n] = Some(v);
        Ok(v)
    }

    fn op(&self, b: &mut Block, op: ScalarOp, args: &[usize], v: &[Value]) -> Result<Value, String> {
        let operand = args.last().map_or(DType::F32, |a| self.body.nodes[*a].dtype);
        use ScalarOp::*;
        if let Cast(to) = op {
            return Ok(convert(b, v[0], operand, to));
        }
        Ok(match op {
            And | BitwiseAnd => b.two(two::AND, v[0], v[1]),
            Or | BitwiseOr => b.two(two::OR, v[0], v[1]),
            Xor | BitwiseXor => b.two(two::XOR, v[0], v[1]),
            Not => b.two_bits(two::XOR, v[0], !0),
            Select => b.select(v[0], v[1], v[2]),
            _ if !is_float(operand) => return integer(b, op, v),
            Max | Min => match [args[0], args[1]].map(|a| self.number(a)) {
                [_, true] => b.two(if op == Max { two::MAX } else { two::MIN }, v[1], v[0]),
                [true, _] => b.two(if op == Max { two::MAX } else { two::MIN }, v[0], v[1]),
                _ => b.extremum(op == Max, v[0], v[1]),
            },
            Div => match self.body.nodes[args[1]].node {
                Node::Const(c) => quotient(b, v[0], c as f32, v[1]),
                _ => b.two(two::DIV, v[0], v[1]),
            },
            _ => return float(b, op, v),
        })
    }

    /// Whether a node is a constant and not NaN.
    fn number(&self, n: usize) -> bool {
        matches!(self.body.nodes[n].node, Node::Const(c) if !c.is_nan())
    }
}

/// The bits of a constant in a lane.
fn bits_of(c: f64, dtype: DType) -> u32 {
    match dtype {
        DType::Bool if c != 0.0 => !0,
        DType::Bool => 0,
        _ if is_float(dtype) => (c as f32).to_bits(),
        _ => c as i64 as u32,
    }
}

/// `x / c`: a product with the reciprocal where that is exact.
fn quotient(b: &mut Block, x: Value, c: f32, divisor: Value) -> Value {
    match exact_reciprocal(c) {
        Some(r) => {
            let r = b.float(r);
            b.two(two::MUL, x, r)
        }
        None => b.two(two::DIV, x, divisor),
    }
}

/// A function of integers or booleans.
fn integer(b: &mut Block, op: ScalarOp, v: &[Value]) -> Result<Value, String> {
    use ScalarOp::*;
    let inverse = |b: &mut Block, v: Value| b.two_bits(two::XOR, v, !0);
    Ok(match op {
        Add => b.two(two::IADD, v[0], v[1]),
        Sub => b.two(two::ISUB, v[0], v[1]),
        Mul => b.two(two::IMUL, v[0], v[1]),
        Max => b.two(two::IMAX, v[0], v[1]),
        Min => b.two(two::IMIN, v[0], v[1]),
        Neg | Abs => {
            let zero = b.bits(0);
            let negative = b.two(two::ISUB, zero, v[0]);
            if op == Neg { negative } else { b.two(two::IMAX, v[0], negative) }
        }
        Eq => b.push(Inst::CompareInt(true, v[0], v[1])),
        Gt => b.push(Inst::CompareInt(false, v[0], v[1])),
        Lt => b.push(Inst::CompareInt(false, v[1], v[0])),
        Ne | Le | Ge => {
            let (equal, [x, y]) = (op == Ne, if op == Ge { [v[1], v[0]] } else { [v[0], v[1]] });
            let opposite = b.push(Inst::CompareInt(equal, x, y));
            inverse(b, opposite)
        }
        _ => return Err(format!("no code is emitted for {op:?} of integers")),
    })
}

/// A function of floats.
fn float(b: &mut Block, op: ScalarOp, v: &[Value]) -> Result<Value, String> {
    use ScalarOp::*;
    let x = v[0];
    Ok(match op {
        Neg => b.negate(x),
        Abs => b.abs(x),
        Sign => b.sign(x),
        Ceil => b.floor_or_ceil(x, true),
        Floor => b.floor_or_ceil(x, false),
        Round => b.round(x),
        Sqrt => b.one(one::SQRT, x),
        Rsqrt | Reciprocal => {
            let by = if op == Rsqrt { b.one(one::SQRT, x) } else { x };
            let unit = b.float(1.0);
            b.two(two::DIV, unit, by)
        }
        Exp => b.exp(x),
        Log => b.log(x),
        Sigmoid => b.sigmoid(x),
        Tanh => b.tanh(x),
        Erf => b.erf(x),
        IsNan => b.is_nan(x),
        IsInf => {
            let size = b.abs(x);
            b.compare_float(Compare::Equal, size, f32::INFINITY)
        }
        Add => b.two(two::ADD, x, v[1]),
        Sub => b.two(two::SUB, x, v[1]),
        Mul => b.two(two::MUL, x, v[1]),
        Eq => b.compare(Compare::Equal, x, v[1]),
        Ne => b.compare(Compare::NotEqual, x, v[1]),
        Lt => b.compare(Compare::Less, x, v[1]),
        Le => b.compare(Compare::LessEqual, x, v[1]),
        Gt => b.compare(Compare::Greater, x, v[1]),
        Ge => b.compare(Compare::GreaterEqual, x, v[1]),
        _ => return Err(format!("no code is emitted for {op:?} of floats")),
    })
}

/// A conversion.
fn convert(b: &mut Block, x: Value, from: DType, to: DType) -> Value {
    use DType::*;
    let range = |t: DType| t.int_range().unwrap_or((0, 1));
    let sign_extended = |b: &mut Block, by: u8| {
        let high = b.shift(Shift::Left, x, by);
        b.shift(Shift::RightSigned, high, by)
    };
    match (from, to) {
        _ if from == to => x,
        (F16 | BF16, _) => convert(b, x, F32, to),
        (_, F16) => {
            let wide = convert(b, x, from, F32);
            b.push(Inst::RoundF16(wide))
        }
        (_, BF16) => {
            let wide = convert(b, x, from, F32);
            let narrow = b.to_bf16(wide);
            b.shift(Shift::Left, narrow, 16)
        }
        (F32, Bool) => b.compare_float(Compare::NotEqual, x, 0.0),
        (_, Bool) => {
            let zero = b.bits(0);
            let is_zero = b.push(Inst::CompareInt(true, x, zero));
            b.two_bits(two::XOR, is_zero, !0)
        }
        (Bool, F32) => b.two_bits(two::AND, x, 1f32.to_bits()),
        (Bool, _) => b.two_bits(two::AND, x, 1),
        (F32, I32) => b.to_int(x),
        (F32, _) => b.to_narrow(x, range(to).0 as f32, range(to).1 as f32),
        (_, F32) => b.one(one::TO_FLOAT, x),
        _ if range(from).0 >= range(to).0 && range(from).1 <= range(to).1 => x,
        (_, U8) => b.two_bits(two::AND, x, 0xff),
        (_, U16) => b.two_bits(two::AND, x, 0xffff),
        (_, I8) => sign_extended(b, 24),
        _ => sign_extended(b, 16),
    }
}

impl Block {
    /// Stores a value of type `dtype` with store number `k`.
    pub fn store(&mut self, k: usize, dtype: DType, v: Value) {
        let (dtype, v) = match dtype {
            DType::Bool => (DType::U8, self.two_bits(two::AND, v, 1)),
            DType::BF16 => (DType::U16, self.to_bf16(v)),
            _ => (dtype, v),
        };
        self.push(Inst::Store(k, dtype, v));
    }
}
