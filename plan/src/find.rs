//! Choosing the program whose inputs fit.

use crate::{ElementType, Extent, MeshPort, MeshProgram, Plan, PlanFile, Port, Program};

/// What is known of an input value: its element type and extents, or nothing for sequences and optionals.
pub type InputDims<'a> = Option<(ElementType, &'a [i64])>;

/// Why no program of a plan takes the given inputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FindError {
    /// The plan holds no program.
    #[error("the plan holds no program")]
    Empty,
    /// No program takes so many inputs.
    #[error("{got} inputs were given; {variants}")]
    Count {
        /// How many were given.
        got: usize,
        /// The programs there are.
        variants: String,
    },
    /// An input fits no program that takes the inputs before it.
    #[error("input `{input}` (number {index}) {problem}; {variants}")]
    Input {
        /// Name of the input.
        input: String,
        /// Its number.
        index: usize,
        /// What does not fit: expected and got.
        problem: String,
        /// The programs there are.
        variants: String,
    },
}

impl PlanFile {
    /// The index of the first program that takes these inputs; an error names the first input that fits none and
    /// lists the variants that there are.
    pub fn find_program(&self, inputs: &[InputDims<'_>]) -> Result<usize, FindError> {
        find(self.plan(), inputs)
    }
}

fn find(plan: &Plan, inputs: &[InputDims<'_>]) -> Result<usize, FindError> {
    if plan.programs.is_empty() {
        return Err(FindError::Empty);
    }
    // The program that agrees on the most inputs from the left explains best what is wrong.
    let mut best: Option<(usize, &Program, String)> = None;
    for (number, program) in entry_points(plan) {
        if program.inputs.len() != inputs.len() {
            continue;
        }
        let mut problems = program.inputs.iter().zip(inputs).map(|(port, given)| port.accepts(*given, program));
        let Some((index, problem)) = problems.by_ref().enumerate().find_map(|(i, r)| r.err().map(|e| (i, e))) else {
            return Ok(number);
        };
        if best.as_ref().is_none_or(|(furthest, ..)| index > *furthest) {
            best = Some((index, program, problem));
        }
    }
    let variants = variants(plan);
    Err(match best {
        None => FindError::Count { got: inputs.len(), variants },
        Some((index, program, problem)) => {
            FindError::Input { input: program.inputs[index].name.clone(), index, problem, variants }
        }
    })
}

/// The programs that a caller may run.
fn entry_points(plan: &Plan) -> impl Iterator<Item = (usize, &Program)> {
    plan.programs.iter().enumerate().filter(|(_, program)| !program.inner)
}

impl Port {
    /// Whether a value of this type fits the port; the error says what was expected and what was given.
    pub fn accepts(&self, given: InputDims<'_>, program: &Program) -> Result<(), String> {
        let Some((dtype, dims)) = given else {
            let opaque = self.object && self.dtype() == ElementType::Unknown;
            return if opaque { Ok(()) } else { Err(format!("must be a tensor of {}", self.type_text(program))) };
        };
        if self.dtype() != dtype && !(self.object && self.dtype() == ElementType::Unknown) {
            return Err(format!("has element type {dtype} and must have {}", self.dtype()));
        }
        if self.object && self.dims.is_empty() {
            return Ok(());
        }
        if self.dims.len() != dims.len() {
            return Err(format!(
                "has rank {} {dims:?} and must have rank {} [{}]",
                dims.len(),
                self.dims.len(),
                self.dims_text(program)
            ));
        }
        let wrong = self.dims.iter().zip(dims).position(|(&want, &got)| want != got && !(self.object && want < 0));
        match wrong {
            None => Ok(()),
            Some(axis) => {
                Err(format!("has extent {} at dimension {axis} and must have {}", dims[axis], self.dims[axis]))
            }
        }
    }

    /// The port's type for people: `f32[N, 3, 224, 224]`, with `?` for an extent that has no name in its program.
    pub fn type_text(&self, program: &Program) -> String {
        if self.object && self.dims.is_empty() {
            return if self.dtype() == ElementType::Unknown {
                "object".into()
            } else {
                format!("{}[..]", self.dtype())
            };
        }
        format!("{}[{}]", self.dtype(), self.dims_text(program))
    }

    /// An open extent as a function of the symbols of its program; nothing where it has no name.
    pub fn extent<'p>(&self, axis: usize, program: &'p Program) -> Option<&'p Extent> {
        program.registers.get(self.register as usize)?.extents.get(axis)
    }

    fn dims_text(&self, program: &Program) -> String {
        let dim = |(axis, d): (usize, &i64)| match self.extent(axis, program) {
            _ if *d >= 0 => d.to_string(),
            Some(extent) => extent.text(&program.symbols),
            None => "?".into(),
        };
        self.dims.iter().enumerate().map(dim).collect::<Vec<_>>().join(", ")
    }
}

impl MeshPort {
    /// The port's type for people: `f32[?, 3, 224, 224]`, with `?` for an open extent.
    pub fn type_text(&self) -> String {
        let dims: Vec<_> = self.dims.iter().map(|d| if *d < 0 { "?".to_string() } else { d.to_string() }).collect();
        format!("{}[{}]", self.dtype(), dims.join(", "))
    }
}

impl MeshProgram {
    /// Checks inputs of these types; the error names the input that does not fit, and why.
    pub fn accepts(&self, inputs: &[InputDims<'_>]) -> Result<(), FindError> {
        let ports: Vec<_> = self.inputs.iter().map(|p| format!("{}: {}", p.name, p.type_text())).collect();
        let variants = format!("the plan takes ({})", ports.join(", "));
        if inputs.len() != self.inputs.len() {
            return Err(FindError::Count { got: inputs.len(), variants });
        }
        for (index, (port, given)) in self.inputs.iter().zip(inputs).enumerate() {
            let problem = match given {
                Some((dtype, dims)) if *dtype == port.dtype() => match port.check(&self.extents(), dims) {
                    Ok(()) => continue,
                    Err(problem) => problem,
                },
                Some((dtype, dims)) => format!("is {dtype}{dims:?} and must be {}", port.type_text()),
                None => "must be a tensor".into(),
            };
            return Err(FindError::Input { input: port.name.clone(), index, problem, variants });
        }
        Ok(())
    }
}

fn variants(plan: &Plan) -> String {
    const SHOWN: usize = 8;
    let mut list: Vec<_> = entry_points(plan).take(SHOWN).map(|(_, program)| signature(program)).collect();
    let count = entry_points(plan).count();
    if count > SHOWN {
        list.push(format!("{} more", count - SHOWN));
    }
    format!("the plan has {}; compile with --shape for others", list.join(", "))
}

fn signature(program: &Program) -> String {
    let ports: Vec<_> =
        program.inputs.iter().map(|port| format!("{}: {}", port.name, port.type_text(program))).collect();
    format!("`{}`({})", program.name, ports.join(", "))
}
