//! An optimizer as IR: a function that computes the next value of a parameter from its gradient.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic};
use of_ir::{Func, Module, TensorType, ValueId};

use super::arithmetic::Arithmetic;
use super::{Optimizer, StepNumbers, plain};

/// A rule of the user's own, given as a function of the IR. Its inputs have names:
///
/// | input | type | meaning |
/// |---|---|---|
/// | `parameter` | float tensor | the parameter before the step |
/// | `gradient` | float tensor | its gradient |
/// | `rate` | number, optional | the learning rate |
/// | `count` | number, optional | the number of the step, from 1 |
/// | `decay` | number, optional | the weight decay, 0 for parameters without |
/// | any other | float tensor | a state of each parameter, like the parameter, zero at first |
///
/// It returns the next parameter and the next value of each state, in the order of the inputs. Parameters have many shapes, so
/// tensors of a rule are unranked (`!of.tensor<*xf32>`). Values are converted to the element types of the inputs, and back.
///
/// ```
/// use of_frontend::training::{Optimizer, Rule};
///
/// let module = of_ir::text::parse_module(
///     "func @descent(%rate: tensor<f32>, %parameter: !of.tensor<*xf32>, %gradient: !of.tensor<*xf32>) -> (!of.tensor<*xf32>) {
///        %change = of.mul %gradient, %rate : (!of.tensor<*xf32>, tensor<f32>) -> !of.tensor<*xf32>
///        %next = of.sub %parameter, %change : (!of.tensor<*xf32>, !of.tensor<*xf32>) -> !of.tensor<*xf32>
///        of.return %next : (!of.tensor<*xf32>) -> ()
///      }",
///     "descent.of",
///     &of_ops::registry(),
///     None,
/// )?;
/// let rule = Rule::new(&module, None)?;
/// assert_eq!((rule.name(), rule.states().len()), ("descent", 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    name: String,
    func: Func,
    states: Vec<String>,
    decay: f64,
}

const PARAMETER: &str = "parameter";
const GRADIENT: &str = "gradient";
const STEP: &str = "rate";
const NUMBER: &str = "count";
const DECAY: &str = "decay";

impl Rule {
    /// The rule of a module's function, with a weight decay for its input `decay`.
    ///
    /// # Errors
    /// When the module has several functions, the function lacks an input or a result, has control flow, or there is a weight decay and
    /// no input for it.
    pub fn new(module: &Module, weight_decay: Option<f64>) -> Result<Rule, Diagnostic> {
        let wrong = |what: String| plain(Code::INPUT, format!("the rule {what}"));
        let mut funcs = module.funcs.iter();
        let (Some((name, func)), None) = (funcs.next(), funcs.next()) else {
            return Err(wrong(format!("is one function, and the module has {}", module.funcs.len())));
        };
        let wrong = |what: String| Diagnostic { location: func.loc.clone(), ..wrong(what) };
        let has = |input: &str| func.inputs.iter().any(|name| name == input);
        if let Some(missing) = [PARAMETER, GRADIENT].into_iter().find(|input| !has(input)) {
            let hint = "the inputs of a rule are parameter, gradient, rate, count, decay and its states";
            return Err(wrong(format!("'{name}' has no input '{missing}'")).hint(hint));
        }
        if weight_decay.is_some_and(|decay| decay != 0.0) && !has(DECAY) {
            return Err(wrong(format!("'{name}' has no input '{DECAY}' for a weight decay")));
        }
        let known = [PARAMETER, GRADIENT, STEP, NUMBER, DECAY];
        let states: Vec<String> = func.inputs.iter().filter(|i| !known.contains(&i.as_str())).cloned().collect();
        for (input, v) in func.inputs.iter().zip(func.graph.args()) {
            let ty = func.graph.ty(*v);
            if !ty.as_tensor().is_some_and(|t| t.dtype.is_float()) {
                return Err(wrong(format!("'{name}' has an input '{input}' of type {ty}, not a tensor of floats")));
            }
        }
        let results = func.graph.outputs().len();
        if results != 1 + states.len() {
            let all: Vec<&str> = [PARAMETER].into_iter().chain(states.iter().map(String::as_str)).collect();
            return Err(wrong(format!("'{name}' returns {results} values, not the next {}", all.join(", "))));
        }
        if let Some(op) = func.graph.walk().into_iter().find(|op| !func.graph.op(*op).regions.is_empty()) {
            let data = func.graph.op(op);
            let what = wrong(format!("'{name}' has control flow ('{}')", data.name()));
            return Err(what.or_at(&data.loc).hint("choose between values with 'of.select'"));
        }
        Ok(Rule { name: name.clone(), func: func.clone(), states, decay: weight_decay.unwrap_or(0.0) })
    }
}

impl Optimizer for Rule {
    fn name(&self) -> &str {
        &self.name
    }

    fn states(&self) -> Vec<&str> {
        self.states.iter().map(String::as_str).collect()
    }

    fn without_decay(&self) -> Option<Box<dyn Optimizer>> {
        Some(Box::new(Rule { decay: 0.0, ..self.clone() }))
    }

    fn update(
        &self,
        b: &mut Arithmetic<'_>,
        step: StepNumbers,
        parameter: ValueId,
        gradient: ValueId,
        states: &[ValueId],
    ) -> Result<(ValueId, Vec<ValueId>), Diagnostic> {
        let g = &self.func.graph;
        let mut known: HashMap<ValueId, ValueId> = HashMap::new();
        let mut left = states.iter();
        for (input, v) in self.func.inputs.iter().zip(g.args()) {
            let given = match input.as_str() {
                PARAMETER => parameter,
                GRADIENT => gradient,
                STEP => step.rate,
                NUMBER => step.count,
                DECAY => b.number(self.decay, parameter)?,
                _ => *left.next().ok_or_else(|| self.wrong("lacks a state".into()))?,
            };
            let dtype = g.ty(*v).as_tensor().map_or(b.dtype(given), |t| t.dtype);
            known.insert(*v, b.cast(given, dtype)?);
        }
        for op in g.region_ops(g.entry()) {
            let data = g.op(op);
            if data.def.traits().terminator {
                continue;
            }
            let operands: Vec<ValueId> = data.operands.iter().filter_map(|v| known.get(v).copied()).collect();
            let made = b.op_all((data.def, data.attrs.clone()), &operands);
            let made = made.map_err(|d| Diagnostic { location: data.loc.clone(), ..d })?;
            known.extend(data.results.iter().copied().zip(made));
        }
        let dims = |b: &Arithmetic<'_>, v: ValueId| b.ty(v).as_tensor().and_then(TensorType::fixed_dims);
        let mut next = Vec::with_capacity(1 + states.len());
        for (v, like) in g.outputs().iter().zip(std::iter::once(&parameter).chain(states)) {
            let made = known.get(v).copied().ok_or_else(|| self.wrong("returns what it does not compute".into()))?;
            let made = b.cast(made, b.dtype(*like))?;
            if dims(b, made) != dims(b, *like) {
                return Err(self.wrong(format!("makes {} of a parameter {}", b.ty(made), b.ty(*like))));
            }
            next.push(made);
        }
        let parameter = next.remove(0);
        Ok((parameter, next))
    }
}

impl Rule {
    fn wrong(&self, what: String) -> Diagnostic {
        let what = format!("the rule '{}' {what}", self.name);
        Diagnostic { location: self.func.loc.clone(), ..plain(Code::TYPE, what) }
    }
}
