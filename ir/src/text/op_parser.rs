//! Ops and regions, in either form.

use std::collections::HashMap;

use of_diag::{Code, Diagnostic, Location};
use smallvec::SmallVec;

use super::cursor::{ParseResult, WithHint};
use super::lexer::{Kind, Token};
use super::module_parser::ModuleParser;
use super::quote;
use super::source_index::{OpSource, Span};
use crate::{Attrs, Graph, IdSet, OpDef, OpId, RegionId, Registry, Rewriter, Type, ValueId};

/// Builds the graph of one function.
pub(super) struct Body<'m, 'a, 'g> {
    pub m: &'m mut ModuleParser<'a>,
    rw: Rewriter<'g>,
    /// The names that are visible, without their `%`.
    values: HashMap<&'a str, Bound>,
    /// The names of each open region, outermost first.
    scopes: Vec<Vec<&'a str>>,
    /// Placeholders for values that could not be created. Their uses are not reported again.
    broken: IdSet<ValueId>,
    /// The operands of the last op of the outermost region.
    last: Vec<&'a str>,
    /// Where the op that is being read begins, or where its last region ended: what follows an error is read from here.
    resume: usize,
}

/// The values that a name refers to: all results of an op for `%a:2`, one value otherwise.
struct Bound {
    values: SmallVec<[ValueId; 1]>,
    at: Token,
    /// Its number in the index; [`UNDEFINED`] for a name without a definition, and without an index.
    definition: u32,
}

const UNDEFINED: u32 = u32::MAX;

/// A result as written: `%a`, or `%a:2`.
struct Named {
    at: Token,
    count: usize,
}

/// An op as written.
struct Written<'a> {
    name_at: Token,
    name: &'a str,
    results: Vec<Named>,
    operands: Vec<(Token, ValueId)>,
    attrs: Attrs,
    regions: Vec<RegionId>,
    types: Option<Types>,
}

/// `: (T, T) -> T` as written.
struct Types {
    at: Token,
    operands: Vec<Type>,
    results: Vec<Type>,
}

impl<'m, 'a, 'g> Body<'m, 'a, 'g> {
    pub fn new(m: &'m mut ModuleParser<'a>, graph: &'g mut Graph) -> Self {
        let rw = Rewriter::new(graph, "parse");
        let (values, broken) = (HashMap::new(), IdSet::default());
        Body { m, rw, values, scopes: vec![Vec::new()], broken, last: Vec::new(), resume: 0 }
    }

    /// The names of the operands of the function's last op, without their `%`.
    pub fn last_operands(&self) -> Vec<String> {
        self.last.iter().map(|s| s[1..].to_owned()).collect()
    }

    /// The placeholders for values that could not be created.
    pub fn into_broken(self) -> IdSet<ValueId> {
        self.broken
    }

    // ---- regions ----

    /// `(%x: T {of.name = "x"}, …)`; returns their names.
    pub fn args(&mut self, region: RegionId, names: &mut Vec<String>) -> ParseResult<()> {
        self.m.p.expect(b'(', "before the arguments")?;
        if self.m.p.eat(b')') {
            return Ok(());
        }
        loop {
            let at = self.m.p.expect_kind(Kind::Value, "an argument")?;
            self.m.p.expect(b':', "before the type of the argument")?;
            let ty = self.m.p.ty()?;
            let text = &self.m.p.str_of(at)[1..];
            names.push(self.m.p.of_name()?.unwrap_or_else(|| text.to_owned()));
            // Upstream locates arguments too; ours have the location of their region's op.
            self.m.p.trailing_loc(&self.m.aliases)?;
            let name = quote::is_value_name(text).then(|| text.into());
            let value = self.rw.add_arg(region, ty, name);
            self.bind(at, &[value]);
            if self.m.p.eat(b')') {
                return Ok(());
            }
            if !self.m.p.eat(b',') {
                return Err(self.m.p.expected("',' or ')' in the arguments"));
            }
        }
    }

    /// `{ op… }`, into `region`.
    pub fn region(&mut self, region: RegionId) -> ParseResult<()> {
        let open = self.m.p.tok;
        self.m.p.expect(b'{', "before the region")?;
        self.ops(region, open)
    }

    /// `{ ^bb0(%x: T): op… }`, into `region`.
    pub fn region_with_args(&mut self, region: RegionId, names: &mut Vec<String>) -> ParseResult<()> {
        let open = self.m.p.tok;
        self.m.p.expect(b'{', "before the region")?;
        if self.m.p.tok.kind == Kind::Block {
            self.m.p.bump();
            if self.m.p.at(b'(') {
                self.args(region, names)?;
            }
            self.m.p.expect(b':', "after the arguments of the region")?;
        }
        self.ops(region, open)
    }

    fn ops(&mut self, region: RegionId, open: Token) -> ParseResult<()> {
        while !self.m.p.eat(b'}') {
            let first = self.m.p.tok;
            let read = match first.kind {
                Kind::Eof => return self.unclosed(open),
                _ if self.m.index.is_some() && self.at_func() => return self.unclosed(open),
                Kind::Block => Err(self.m.p.error(first, "a region holds one block, this is a second")),
                _ => {
                    self.resume = first.start;
                    self.op(region)
                }
            };
            match read {
                Ok(()) => {}
                Err(e) if self.m.index.is_some() => self.recover(first, *e),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether the next token begins a function, which the missing end of this one hides.
    fn at_func(&self) -> bool {
        matches!(self.m.p.peek(), "func" | "\"of.func\"") && self.m.p.begins_line(self.m.p.tok)
    }

    /// Ends a region that is not closed.
    fn unclosed(&mut self, open: Token) -> ParseResult<()> {
        let begin = self.m.p.location(open);
        let e = Box::new(self.m.p.expected("'}' after the region").note(format!("it begins at {begin}")));
        if self.m.index.is_none() {
            return Err(e);
        }
        self.m.report_syntax(*e);
        Ok(())
    }

    /// Goes on after an error in the op that begins with `first`: its results are placeholders, and what follows is read
    /// from the next line that begins an op.
    fn recover(&mut self, first: Token, e: Diagnostic) {
        self.m.report_syntax(e);
        self.m.p.seek(first.start);
        for r in self.results().unwrap_or_default() {
            let broken = self.broken();
            self.bind(r.at, &[broken]);
        }
        self.m.p.seek(if self.resume > first.start { self.resume } else { first.end });
        let mut depth = 0usize;
        loop {
            let t = self.m.p.tok;
            match t.kind {
                Kind::Eof => return,
                Kind::Punct(b'{') if self.m.p.ends_line(t) => depth += 1,
                _ if !self.m.p.begins_line(t) => {}
                Kind::Punct(b'}') if depth == 0 => return,
                Kind::Punct(b'}') => depth -= 1,
                Kind::Value if depth == 0 && self.at_results() => return,
                Kind::Str if depth == 0 => return,
                Kind::Ident if self.at_func() || (depth == 0 && self.m.p.peek().contains('.')) => return,
                _ => {}
            }
            self.m.p.bump();
        }
    }

    fn inner_region(&mut self) -> ParseResult<RegionId> {
        self.m.p.enter()?;
        self.scopes.push(Vec::new());
        let region = self.rw.new_region();
        let read = self.region_with_args(region, &mut Vec::new());
        for name in self.scopes.pop().unwrap_or_default() {
            self.values.remove(name);
        }
        self.m.p.leave();
        read?;
        self.resume = self.m.p.end;
        Ok(region)
    }

    /// `{ … }, { … }`.
    fn inner_regions(&mut self) -> ParseResult<Vec<RegionId>> {
        let mut all = vec![self.inner_region()?];
        while self.m.p.eat(b',') {
            all.push(self.inner_region()?);
        }
        Ok(all)
    }

    // ---- ops ----

    fn op(&mut self, region: RegionId) -> ParseResult<()> {
        let first = self.m.p.tok;
        let results = self.results()?;
        let name_at = self.m.p.tok;
        let here = self.m.p.location(name_at);
        let slot = self.begin_op(first, name_at);
        let w = match name_at.kind {
            Kind::Str => self.generic_op(results)?,
            Kind::Ident => self.pretty_op(results)?,
            _ => {
                let e = self.m.p.expected("an op");
                return Err(e.with_hint("of.name %operand {attr = 1} : (type) -> type"));
            }
        };
        let loc = self.m.p.trailing_loc(&self.m.aliases)?.unwrap_or_else(|| here.clone());
        let op = self.create(region, w, here, loc);
        let end = self.m.p.end;
        if let Some(o) = self.m.func_index().and_then(|f| f.ops.get_mut(slot)) {
            (o.op, o.whole.end) = (op, end);
        }
        Ok(())
    }

    /// Adds an op to the index and returns its place there. Its end is that of its name until it is known.
    fn begin_op(&mut self, first: Token, name: Token) -> usize {
        let Some(f) = self.m.func_index() else { return 0 };
        let whole = Span { start: first.start, end: name.end };
        f.ops.push(OpSource { op: None, name: name.into(), whole });
        f.ops.len() - 1
    }

    /// `%a, %b:2 =`.
    fn results(&mut self) -> ParseResult<Vec<Named>> {
        let mut all = Vec::new();
        if self.m.p.tok.kind != Kind::Value {
            return Ok(all);
        }
        loop {
            let at = self.m.p.expect_kind(Kind::Value, "the name of a result")?;
            let mut count = 1;
            if self.m.p.eat(b':') {
                let n = self.m.p.tok;
                // No op has more; and a list of that length is made from a few characters.
                const MAX_RESULTS: usize = 1 << 16;
                count = self.m.p.number("the number of results")?;
                if count == 0 || count > MAX_RESULTS {
                    return Err(self.m.p.error(n, "the number of results is out of range"));
                }
            }
            all.push(Named { at, count });
            if !self.m.p.eat(b',') {
                break;
            }
        }
        self.m.p.expect(b'=', "after the results")?;
        Ok(all)
    }

    /// `"of.x"(%a) ({ … }) {a = 1 : i64} : (T) -> T`.
    fn generic_op(&mut self, results: Vec<Named>) -> ParseResult<Written<'a>> {
        let name_at = self.m.p.bump();
        // Names of ops have no escapes.
        let name = self.m.p.str_of(name_at).trim_matches('"');
        self.m.p.expect(b'(', "before the operands")?;
        let operands = self.operands()?;
        self.m.p.expect(b')', "after the operands")?;
        let mut regions = Vec::new();
        if self.m.p.eat(b'(') {
            regions = self.inner_regions()?;
            self.m.p.expect(b')', "after the regions")?;
        }
        let attrs = if self.m.p.at(b'{') { self.m.p.attrs()? } else { Attrs::new() };
        if !self.m.p.at(b':') {
            return Err(self.m.p.expected("':' and the types"));
        }
        let types = Some(self.types()?);
        Ok(Written { name_at, name, results, operands, attrs, regions, types })
    }

    /// `of.x %a {a = 1} : (T) -> T { … }`.
    fn pretty_op(&mut self, results: Vec<Named>) -> ParseResult<Written<'a>> {
        let name_at = self.m.p.bump();
        let name = self.m.p.str_of(name_at);
        let operands = if self.at_results() { Vec::new() } else { self.operands()? };
        let attrs = if self.at_dict() { self.m.p.attrs()? } else { Attrs::new() };
        let types = if self.m.p.at(b':') { Some(self.types()?) } else { None };
        let regions = if self.m.p.at(b'{') { self.inner_regions()? } else { Vec::new() };
        Ok(Written { name_at, name, results, operands, attrs, regions, types })
    }

    /// Whether `{` begins attributes rather than a region: a name and what may follow it come next.
    fn at_dict(&self) -> bool {
        if !self.m.p.at(b'{') {
            return false;
        }
        let mut ahead = self.m.p.ahead();
        let (Some(first), Some(second), Some(third)) = (ahead.next(), ahead.next(), ahead.next()) else {
            return false;
        };
        match (first.kind, second.kind) {
            (Kind::Punct(b'}'), _) | (Kind::Ident | Kind::Str, Kind::Punct(b'=' | b',')) => true,
            // A lone word is an attribute without a value, unless it is an op without operands: types follow only
            // attributes.
            (Kind::Ident | Kind::Str, Kind::Punct(b'}')) => {
                third.kind == Kind::Punct(b':') || self.m.registry.get(self.m.p.str_of(first)).is_none()
            }
            _ => false,
        }
    }

    /// Whether the results of the next op come next: `%a, %b:2 =`.
    fn at_results(&self) -> bool {
        if self.m.p.tok.kind != Kind::Value {
            return false;
        }
        let mut last = Kind::Value;
        for t in self.m.p.ahead() {
            match (last, t.kind) {
                (Kind::Value | Kind::Int, Kind::Punct(b'=')) => return true,
                (Kind::Value | Kind::Int, Kind::Punct(b','))
                | (Kind::Value, Kind::Punct(b':'))
                | (Kind::Punct(b':'), Kind::Int)
                | (Kind::Punct(b','), Kind::Value) => last = t.kind,
                _ => return false,
            }
        }
        false
    }

    /// `%a, %b#1`.
    fn operands(&mut self) -> ParseResult<Vec<(Token, ValueId)>> {
        let mut all = Vec::new();
        if self.m.p.tok.kind != Kind::Value {
            return Ok(all);
        }
        loop {
            let mut at = self.m.p.expect_kind(Kind::Value, "an operand")?;
            let name = &self.m.p.str_of(at)[1..];
            let mut index = 0;
            if self.m.p.tok.kind == Kind::Hash && self.m.p.tok.start == at.end {
                let t = self.m.p.bump();
                index = self.m.p.str_of(t)[1..]
                    .parse()
                    .map_err(|_| self.m.p.error(t, "the number of a result follows '#'"))?;
                at.end = t.end;
            }
            let value = self.lookup(at, name, index);
            all.push((at, value));
            if !self.m.p.eat(b',') {
                return Ok(all);
            }
        }
    }

    /// `: (T, T) -> T`, `: (T) -> (T, T)`.
    fn types(&mut self) -> ParseResult<Types> {
        self.m.p.bump();
        let at = self.m.p.tok;
        let operands = self.m.p.types("the operand types")?;
        self.m.p.expect_kind(Kind::Arrow, "'->' after the operand types")?;
        let results = if self.m.p.at(b'(') { self.m.p.types("the result types")? } else { vec![self.m.p.ty()?] };
        Ok(Types { at, operands, results })
    }

    // ---- values ----

    fn lookup(&mut self, at: Token, name: &'a str, index: usize) -> ValueId {
        match self.values.get(name) {
            Some(b) if index < b.values.len() => return self.refer(at, b.values[index], b.definition),
            // The number of results is unknown.
            Some(b) if self.broken.contains(&b.values[0]) => return self.refer(at, b.values[0], b.definition),
            Some(b) => {
                let what = format!("'%{name}' has {} results, this is number {index}", b.values.len());
                self.report(Code::NAME, at, what);
            }
            None => {
                let e = self.m.p.error_of(Code::NAME, at, format!("'%{name}' is not defined here"));
                self.m
                    .errors
                    .push(*e.with_hint("a value is visible after its definition, in its region and those inside"));
            }
        }
        // Once is enough for each name.
        let value = self.broken();
        if !self.values.contains_key(name) {
            self.insert(name, Bound { values: SmallVec::from_slice(&[value]), at, definition: UNDEFINED });
        }
        value
    }

    /// Adds a use to the index.
    fn refer(&mut self, at: Token, value: ValueId, definition: u32) -> ValueId {
        if definition != UNDEFINED
            && let Some(f) = self.m.func_index()
        {
            f.refer(at, value, definition);
        }
        value
    }

    fn bind(&mut self, at: Token, values: &[ValueId]) {
        let name = &self.m.p.str_of(at)[1..];
        if let Some(b) = self.values.get(name) {
            let first = self.m.p.location(b.at);
            let e = self.m.p.error_of(Code::NAME, at, format!("'%{name}' is defined twice"));
            self.m.errors.push(e.note(format!("the first definition is at {first}")));
        }
        let definition = self.m.func_index().map_or(UNDEFINED, |f| f.define(at, values));
        self.insert(name, Bound { values: SmallVec::from_slice(values), at, definition });
    }

    fn insert(&mut self, name: &'a str, bound: Bound) {
        if self.values.insert(name, bound).is_none()
            && let Some(scope) = self.scopes.last_mut()
        {
            scope.push(name);
        }
    }

    /// A placeholder for a value that could not be parsed. A module with placeholders is discarded.
    fn broken(&mut self) -> ValueId {
        let nowhere = self.rw.new_region();
        let v = self.rw.add_arg(nowhere, Type::None, None);
        self.broken.insert(v);
        v
    }

    fn report(&mut self, code: Code, at: Token, what: String) {
        let e = self.m.p.error_of(code, at, what);
        self.m.errors.push(*e);
    }

    // ---- creation ----

    /// Makes the op and binds its results; `None` where it has an error.
    fn create(&mut self, region: RegionId, w: Written<'a>, here: Location, loc: Location) -> Option<OpId> {
        if region == self.rw.graph().entry() {
            self.last = w.operands.iter().map(|(t, _)| self.m.p.str_of(*t)).collect();
        }
        let operands: Vec<ValueId> = w.operands.iter().map(|(_, v)| *v).collect();
        let whole = !operands.iter().any(|v| self.broken.contains(v));
        if whole && let Some(types) = &w.types {
            self.check_operands(&w, types);
        }
        let declared = w.types.map(|t| t.results);
        let named: usize = w.results.iter().map(|r| r.count).sum();
        let made = match self.m.registry.get(w.name) {
            None => {
                self.m.errors.push(unknown_op(self.m.registry, w.name, here));
                None
            }
            Some(def) => {
                self.rw.at_end(region);
                self.rw.set_location(loc);
                match self.insert_op(def, &operands, w.attrs, &w.regions, declared.clone()) {
                    Ok(op) => Some(op),
                    Err(mut d) => {
                        if whole {
                            // Report the position in this text, not the location attribute of the op.
                            d.location = here;
                            self.m.errors.push(*d);
                        }
                        None
                    }
                }
            }
        };
        let count = made.map(|op| self.rw.graph().op(op).results.len()).or(declared.map(|d| d.len()));
        let fits = count.is_none_or(|n| named == 0 || n == named);
        if !fits {
            let what = format!("'{}' has {} results, {named} are named", w.name, count.unwrap_or(0));
            self.report(Code::ARITY, w.name_at, what);
        }
        let Some(op) = made.filter(|_| fits) else {
            // One value under every name, however many are asked for.
            for r in &w.results {
                let broken = self.broken();
                self.bind(r.at, &[broken]);
            }
            return None;
        };
        let values = self.rw.graph().op(op).results.clone();
        let mut rest = values.as_slice();
        for r in &w.results {
            let (own, others) = rest.split_at(r.count);
            rest = others;
            self.bind(r.at, own);
            let text = &self.m.p.str_of(r.at)[1..];
            if quote::is_value_name(text) {
                own.iter().for_each(|v| self.rw.set_name(*v, text));
            }
        }
        Some(op)
    }

    fn insert_op(
        &mut self,
        def: &'static dyn OpDef,
        operands: &[ValueId],
        attrs: Attrs,
        regions: &[RegionId],
        types: Option<Vec<Type>>,
    ) -> ParseResult<OpId> {
        Ok(match types {
            Some(types) => self.rw.create_with_types((def, attrs), operands, regions, types)?,
            None => self.rw.create_with_regions((def, attrs), operands, regions)?,
        })
    }

    fn check_operands(&mut self, w: &Written<'a>, types: &Types) {
        if types.operands.len() != w.operands.len() {
            let what = format!("{} operand types given for {} operands", types.operands.len(), w.operands.len());
            return self.report(Code::ARITY, types.at, what);
        }
        for ((at, value), declared) in w.operands.iter().zip(&types.operands) {
            let actual = self.rw.graph().ty(*value).clone();
            if !accepts(declared, &actual) {
                let what = format!("'{}' has type {actual}, here it is declared {declared}", self.m.p.str_of(*at));
                self.report(Code::TYPE, *at, what);
            }
        }
    }
}

/// Whether a value of type `actual` may be declared as `declared`: equal, except that `?` matches any dimension.
pub(super) fn accepts(declared: &Type, actual: &Type) -> bool {
    match (declared, actual) {
        (Type::Tensor(d), Type::Tensor(a)) => {
            let shapes = match (&d.shape, &a.shape) {
                (Some(x), Some(y)) => x.len() == y.len() && x.iter().zip(y).all(|(d, a)| d.is_unknown() || d == a),
                (None, None) => true,
                _ => false,
            };
            shapes && d.dtype == a.dtype && d.sbp == a.sbp
        }
        (Type::Sequence(d), Type::Sequence(a)) | (Type::Optional(d), Type::Optional(a)) => accepts(d, a),
        (d, a) => d == a,
    }
}

fn unknown_op(registry: &Registry, name: &str, loc: Location) -> Diagnostic {
    let d = Diagnostic::error(Code::UNKNOWN_OP, loc, format!("there is no op '{name}'"));
    let near = registry.iter().map(|o| (distance(name, o.name()), o.name())).min();
    match near {
        Some((n, other)) if n <= 2 => d.hint(format!("did you mean '{other}'?")),
        _ => d.hint("'of-opt ops' lists all ops"),
    }
}

/// How many characters differ, at least; large for names that are too long to be misspelt.
fn distance(a: &str, b: &str) -> usize {
    const MAX_LENGTH: usize = 64;
    if a.len() > MAX_LENGTH || a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let b = b.as_bytes();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
