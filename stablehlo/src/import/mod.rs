//! From parsed text to a module, operation by operation.

pub(crate) mod build;
mod fold;
mod ranges;
mod report;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use of_diag::{Code, Diagnostic, Diagnostics, Location};
use of_ir::{Attrs, Func, Graph, IdMap, Module, RegionId, Rewriter, Tensor, TensorType, Type, ValueId};
use of_ops::structural::{Constant, Return, Yield};

use crate::ops;
use crate::parse::Lines;
use crate::parse::ast::{self, Arg, Attr, Op, Region, Ty, find};

pub(crate) use report::ImportError;
use report::Report;

/// What an importer returns: the values of the operation's results.
pub(crate) type ImportResult = Result<Vec<ValueId>, ImportError>;

/// An operation whose operands are known.
pub(crate) struct Call<'a> {
    /// As it is in the text.
    pub op: &'a Op<'a>,
    /// The operands.
    pub operands: Vec<ValueId>,
    /// Types of the results.
    pub types: Vec<TensorType>,
}

/// The values of a name; `None` where it could not be imported.
type Bound = Vec<Option<ValueId>>;

/// The state of an import.
pub(crate) struct Importer<'a, 'g> {
    /// Creates ops, at the end of the region that is being filled.
    pub rw: Rewriter<'g>,
    region: RegionId,
    lines: &'a Arc<Lines>,
    location: Location,
    funcs: &'a HashMap<&'a str, &'a ast::Func<'a>>,
    /// Names of the function and of the regions around the operation; those before `frame` are of callers.
    scopes: Vec<HashMap<&'a str, Bound>>,
    frame: usize,
    report: Report,
    depth: usize,
    /// Values that count along an axis: what `stablehlo.iota` gave.
    pub iotas: IdMap<ValueId, usize>,
    /// Values that are broadcast, with what they are broadcast from; its axes are the last ones.
    pub sources: IdMap<ValueId, ValueId>,
    /// The least and the greatest value of counters of loops.
    pub ranges: IdMap<ValueId, (i64, i64)>,
    /// Indices as i64.
    pub wide: IdMap<ValueId, ValueId>,
    /// The operations of the block that is imported.
    block: &'a [Op<'a>],
    /// How many operations were imported, those of functions at each call.
    count: usize,
}

/// Regions and calls within each other; few enough for the stack.
const DEEPEST: usize = 64;
/// Operations with all calls inlined. More is a program that calls itself over and over, not a model.
const MOST: usize = 4_000_000;

/// Imports a module.
pub(crate) fn module(
    parsed: &ast::Module<'_>,
    lines: &Arc<Lines>,
    constants: &BTreeMap<usize, Tensor>,
) -> Result<Module, Diagnostics> {
    let funcs: HashMap<&str, &ast::Func<'_>> = parsed.funcs.iter().map(|f| (f.name.as_str(), f)).collect();
    let Some(main) = funcs.get("main").copied().or(parsed.funcs.first()) else {
        let d = Diagnostic::error(Code::MODEL, lines.location(0), "the module has no function");
        return Err(d.hint("print the module with jax.jit(f).lower(…).as_text()").into());
    };
    let mut graph = Graph::new();
    let region = graph.entry();
    let mut importer = Importer {
        rw: Rewriter::new(&mut graph, "stablehlo"),
        region,
        lines,
        location: Location::Unknown,
        funcs: &funcs,
        scopes: Vec::new(),
        frame: 0,
        report: Report::default(),
        depth: 0,
        iotas: HashMap::default(),
        sources: HashMap::default(),
        block: &main.body,
        ranges: HashMap::default(),
        wide: HashMap::default(),
        count: 0,
    };
    importer.check_names(main);
    let outputs = importer.main(main, constants);
    if !importer.report.is_empty() {
        return Err(importer.report.finish());
    }
    let func = Func {
        inputs: inputs(main, constants).into_iter().map(|(_, name)| name).collect(),
        outputs: output_names(main, outputs),
        attrs: Attrs::new(),
        loc: lines.location(main.pos),
        graph,
    };
    Ok(Module { name: parsed.name.clone(), funcs: [("main".to_owned(), func)].into(), ..Module::default() })
}

/// The names of the inputs: those that locations say, else those in the text.
fn argument_names(args: &[Arg<'_>]) -> Vec<String> {
    let wanted = args.iter().map(|a| match a.label.as_deref().map(plain) {
        Some(label) if !label.is_empty() => label,
        _ => plain(a.name),
    });
    unique(wanted)
}

/// The arguments that are inputs, with their names.
fn inputs(main: &ast::Func<'_>, constants: &BTreeMap<usize, Tensor>) -> Vec<(usize, String)> {
    let all = argument_names(&main.args).into_iter().enumerate();
    all.filter(|(i, _)| !constants.contains_key(i)).collect()
}

/// The names of the outputs: `jax.result_info`, else numbers.
fn output_names(main: &ast::Func<'_>, count: usize) -> Vec<String> {
    let wanted = (0..count).map(|i| match main.result_attrs.get(i).and_then(|a| find(a, "jax.result_info")) {
        Some(Attr::Str(info)) if !plain(info).is_empty() => plain(info),
        _ => format!("result_{i}"),
    });
    unique(wanted)
}

/// `params['dense']['kernel']` as `params_dense_kernel`: what the command line can name.
fn plain(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_alphanumeric() || c == '.' {
            out.push(c);
        } else if !out.ends_with('_') && !out.is_empty() {
            out.push('_');
        }
    }
    out.trim_matches(|c| c == '_' || c == '.').to_owned()
}

fn unique(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut taken = HashSet::new();
    let mut out = Vec::new();
    for (i, name) in names.enumerate() {
        let mut own = name;
        while !taken.insert(own.clone()) {
            own = format!("{own}_{i}");
        }
        out.push(own);
    }
    out
}

impl<'a> Importer<'a, '_> {
    /// Reports every operation that the table lacks, in all functions that are called and in all regions.
    fn check_names(&mut self, main: &'a ast::Func<'a>) {
        let mut seen: HashSet<&str> = [main.name.as_str()].into();
        let mut open: Vec<&'a [Op<'a>]> = vec![&main.body];
        while let Some(ops) = open.pop() {
            for op in ops {
                if let Err(reason) = ops::find(op) {
                    self.report.unsupported(&ops::name(op), reason.to_owned(), self.lines.location(op.pos));
                }
                let callee = op.attr("callee").or(op.attr("decomposition"));
                if let Some(Attr::Symbol(name)) = callee
                    && let Some(f) = self.funcs.get(name.as_str())
                    && seen.insert(&f.name)
                {
                    open.push(&f.body);
                }
                // A reducer is recognised as a whole.
                if !ops::reads_regions_itself(op) {
                    open.extend(op.regions.iter().map(|r| r.ops.as_slice()));
                }
            }
        }
    }

    /// Imports the entry; the number of its outputs.
    fn main(&mut self, main: &'a ast::Func<'a>, constants: &BTreeMap<usize, Tensor>) -> usize {
        self.scopes.push(HashMap::default());
        if let Some(i) = constants.keys().find(|i| **i >= main.args.len()) {
            let message = format!("a value is given for argument {i}, there are {}", main.args.len());
            self.report.error(Diagnostic::error(Code::INPUT, self.lines.location(main.pos), message));
        }
        for (i, (arg, name)) in main.args.iter().zip(argument_names(&main.args)).enumerate() {
            let bound = match (&arg.ty, constants.get(&i)) {
                (Ty::Tensor(t), Some(value)) => self.bound_constant(arg, t, value, &name),
                (Ty::Tensor(t), None) => Some(self.rw.add_arg(self.region, Type::Tensor(t.clone()), Some(name.into()))),
                (Ty::Other(t), _) => {
                    let message = format!("argument {} has type {t}, which is not supported", arg.name);
                    let d = Diagnostic::error(Code::UNSUPPORTED, self.lines.location(arg.pos), message);
                    self.report.error(d.hint("the IR has tensors of numbers and truth values with fixed extents"));
                    None
                }
            };
            self.bind(arg.name, vec![bound]);
        }
        let outputs = self.ops(&main.body).and_then(|v| v.into_iter().collect::<Option<Vec<_>>>());
        let Some(outputs) = outputs else { return 0 };
        self.rw.set_location(Location::Unknown);
        if let Err(d) = self.rw.create(Return {}, &outputs) {
            self.report.error(d);
        }
        outputs.len()
    }

    /// An argument that is a constant.
    fn bound_constant(&mut self, arg: &Arg<'_>, ty: &TensorType, value: &Tensor, name: &str) -> Option<ValueId> {
        let location = self.lines.location(arg.pos);
        if value.ty() != *ty {
            let (is, takes) = (Type::Tensor(value.ty()), Type::Tensor(ty.clone()));
            let message = format!("argument {name} is {takes}, the value for it is {is}");
            self.report.error(Diagnostic::error(Code::INPUT, location, message));
            return None;
        }
        self.rw.set_location(location);
        let constant = self.rw.create_one(Constant { value: value.clone() }, &[]);
        constant.map_err(|d| self.report.error(d)).ok().inspect(|v| self.rw.set_name(*v, name))
    }

    fn bind(&mut self, name: &'a str, bound: Bound) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name, bound);
        }
    }

    /// The value of `%name` or `%name#1`; `None` where it could not be imported.
    fn lookup(&self, name: &str) -> Result<Option<ValueId>, ImportError> {
        let (base, index) = match name.split_once('#') {
            Some((base, index)) => (base, index.parse().unwrap_or(usize::MAX)),
            None => (name, 0),
        };
        let scopes = self.scopes[self.frame..].iter().rev();
        let found = scopes.filter_map(|s| s.get(base)).next().and_then(|b| b.get(index));
        found.copied().ok_or_else(|| {
            let message = format!("{name} is used before it is defined");
            ImportError::Invalid(Diagnostic::error(Code::NAME, Location::Unknown, message))
        })
    }

    /// The value of a name that an operation can see.
    pub fn visible(&self, name: &str) -> Option<ValueId> {
        self.lookup(name).ok().flatten()
    }

    /// Imports operations up to the terminator, and returns what that returns. `None` if there is none.
    fn ops(&mut self, ops: &'a [Op<'a>]) -> Option<Bound> {
        let mut out = None;
        let outer = self.location.clone();
        let block = std::mem::replace(&mut self.block, ops);
        for op in ops {
            let location = self.lines.location(op.pos);
            self.rw.set_location(location.clone());
            self.location = location.clone();
            if matches!(op.name.as_str(), "stablehlo.return" | "func.return" | "mhlo.return") {
                let values = op.operands.iter().map(|name| self.lookup(name));
                match values.collect::<Result<Bound, _>>() {
                    Ok(values) => out = Some(values),
                    Err(e) => self.fault(op, e, &location),
                }
                break;
            }
            let results = self.op(op).map_err(|e| self.fault(op, e, &location));
            let mut values =
                results.map_or_else(|()| vec![None; op.result_count()], |v| v.into_iter().map(Some).collect());
            for (name, count) in op.results.iter().rev() {
                let rest = values.split_off(values.len().saturating_sub(*count));
                self.bind(name, rest);
            }
        }
        self.block = block;
        self.location = outer.clone();
        self.rw.set_location(outer);
        out
    }

    /// How many operations of the block read the first operand of `op`, those in regions included.
    pub fn readers(&self, op: &Op<'_>) -> usize {
        fn count(ops: &[Op<'_>], name: &str) -> usize {
            let inner = |op: &Op<'_>| op.regions.iter().map(|r| count(&r.ops, name)).sum::<usize>();
            ops.iter().map(|op| usize::from(op.operands.contains(&name)) + inner(op)).sum()
        }
        op.operands.first().map_or(0, |name| count(self.block, name))
    }

    fn fault(&mut self, op: &Op<'_>, fault: ImportError, location: &Location) {
        match fault {
            ImportError::Poisoned => {}
            ImportError::Invalid(d) => self.report.error(d.or_at(location)),
            ImportError::Unsupported(reason) => self.report.unsupported(&ops::name(op), reason, location.clone()),
        }
    }

    /// The values of the results of an operation.
    fn op(&mut self, op: &'a Op<'a>) -> ImportResult {
        self.count += 1;
        if self.count > MOST {
            return Err(ImportError::unsupported(format!("the program has more than {MOST} operations")));
        }
        // What the table lacks was reported before.
        let Ok(import) = ops::find(op) else { return Err(ImportError::Poisoned) };
        let operands: Bound = op.operands.iter().map(|name| self.lookup(name)).collect::<Result<_, _>>()?;
        let operands: Option<Vec<ValueId>> = operands.into_iter().collect();
        let types = op.types.iter().map(|t| match t {
            Ty::Tensor(t) => Ok(t.clone()),
            Ty::Other(t) => Err(ImportError::unsupported(format!("its result has type {t}"))),
        });
        let types = types.collect::<Result<Vec<_>, _>>()?;
        let operands = operands.ok_or(ImportError::Poisoned)?;
        let results = import(self, &Call { op, operands, types: types.clone() })?;
        if results.len() != types.len() {
            return Err(ImportError::invalid(format!("it has {} results, not {}", results.len(), types.len())));
        }
        for (v, ty) in results.iter().zip(&types) {
            let (is, says) = (self.rw.graph().ty(*v), Type::Tensor(ty.clone()));
            if !is.compatible(&says) {
                return Err(ImportError::invalid(format!("its result is {is}, the text says {says}")));
            }
        }
        Ok(results)
    }

    fn enter(&mut self) -> Result<(), ImportError> {
        if self.depth == DEEPEST {
            return Err(ImportError::unsupported(format!("more than {DEEPEST} regions and calls within each other")));
        }
        self.depth += 1;
        Ok(())
    }

    /// The body of the function `name` with `operands` as its arguments.
    pub fn inline(&mut self, name: &str, operands: &[ValueId]) -> ImportResult {
        let Some(f) = self.funcs.get(name).copied() else {
            return Err(ImportError::invalid(format!("the module has no function @{name}")));
        };
        if f.args.len() != operands.len() {
            let message = format!("@{name} has {} arguments, {} are given", f.args.len(), operands.len());
            return Err(ImportError::invalid(message));
        }
        self.enter()?;
        let frame = std::mem::replace(&mut self.frame, self.scopes.len());
        self.scopes.push(f.args.iter().zip(operands).map(|(a, v)| (a.name, vec![Some(*v)])).collect());
        let out = self.ops(&f.body);
        self.scopes.pop();
        self.frame = frame;
        self.depth -= 1;
        complete(out)
    }

    /// The operations of a region, where new ops go, with `args` as its arguments.
    pub fn inline_region(&mut self, region: &'a Region<'a>, args: &[ValueId]) -> ImportResult {
        if region.args.len() != args.len() {
            let message = format!("a region has {} arguments, it must have {}", region.args.len(), args.len());
            return Err(ImportError::invalid(message));
        }
        self.enter()?;
        self.scopes.push(region.args.iter().zip(args).map(|(a, v)| (a.name, vec![Some(*v)])).collect());
        let out = self.ops(&region.ops);
        self.scopes.pop();
        self.depth -= 1;
        complete(out)
    }

    /// A new region of the IR with arguments of the given types, which yields what `fill` returns.
    pub fn region(
        &mut self,
        types: &[Type],
        fill: impl FnOnce(&mut Self, &[ValueId]) -> ImportResult,
    ) -> Result<RegionId, ImportError> {
        let id = self.rw.new_region();
        let outer = std::mem::replace(&mut self.region, id);
        // What is created in the region is not visible behind it.
        let wide = self.wide.clone();
        self.rw.at_end(id);
        let args: Vec<ValueId> = types.iter().map(|t| self.rw.add_arg(id, t.clone(), None)).collect();
        let yields = fill(self, &args);
        let end = yields.and_then(|v| Ok(self.rw.create(Yield {}, &v)?));
        self.region = outer;
        self.wide = wide;
        self.rw.at_end(outer);
        end.map(|_| id)
    }
}

impl Importer<'_, '_> {
    /// Removes a region that no op has adopted.
    pub fn discard(&mut self, region: RegionId) {
        let ops: Vec<_> = self.rw.graph().region_ops(region).collect();
        ops.into_iter().rev().for_each(|op| self.rw.erase(op));
    }
}

/// All values, or the reason why there are fewer.
fn complete(out: Option<Bound>) -> ImportResult {
    out.and_then(|v| v.into_iter().collect()).ok_or(ImportError::Poisoned)
}
