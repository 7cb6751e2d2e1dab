//! Modules, functions, regions, and operations in MLIR's generic form.

use super::ast::{Arg, Attr, Func, Module, Op, Region, Ty, find};
use super::lexer::Kind;
use super::{Parsed, Parser};

impl<'a> Parser<'a> {
    /// The whole text.
    pub(super) fn module(&mut self) -> Parsed<Module<'a>> {
        let mut module = Module { name: String::new(), funcs: Vec::new() };
        loop {
            match self.token.kind {
                Kind::Eof => return Ok(module),
                // `#loc1 = loc(…)`, `#map = …`, on a line of its own.
                Kind::Hash => {
                    let end =
                        self.text[self.token.start..].find('\n').map_or(self.text.len(), |i| self.token.start + i);
                    self.seek(end);
                }
                _ => self.top_level(&mut module)?,
            }
        }
    }

    fn top_level(&mut self, module: &mut Module<'a>) -> Parsed<()> {
        if self.eat_word("module") || self.eat_word("builtin.module") {
            if self.is(Kind::Symbol) {
                module.name = self.symbol()?;
            }
            if self.eat_word("attributes") {
                self.dictionary(b'{', b'}')?;
            }
            self.expect(b'{')?;
            while !self.eat(b'}') {
                if self.is(Kind::Eof) {
                    return Err(self.unexpected("'}'"));
                }
                self.top_level(module)?;
            }
            self.skip_location()?;
            return Ok(());
        }
        if self.is_word("func.func") || self.is_word("func") {
            module.funcs.push(self.func()?);
            return Ok(());
        }
        // Meshes of shardings hold no computation.
        if self.eat_word("sdy.mesh") {
            self.symbol()?;
            self.expect(b'=')?;
            self.angle_text()?;
            if self.is_punct(b'{') {
                self.dictionary(b'{', b'}')?;
            }
            self.skip_location()?;
            return Ok(());
        }
        if !self.is(Kind::Str) {
            return Err(self.unexpected("a function"));
        }
        let op = self.op()?;
        match op.name.as_str() {
            "builtin.module" => {
                if let Some(Attr::Str(name)) = op.attr("sym_name") {
                    module.name = name.clone();
                }
                for op in op.regions.into_iter().flat_map(|r| r.ops) {
                    module.funcs.extend(generic_func(op));
                }
            }
            _ => module.funcs.extend(generic_func(op)),
        }
        Ok(())
    }

    /// `@name`.
    pub(super) fn symbol(&mut self) -> Parsed<String> {
        let text = self.expect_kind(Kind::Symbol, "a name with '@'")?;
        Ok(Self::unquote(text.trim_start_matches('@')))
    }

    fn func(&mut self) -> Parsed<Func<'a>> {
        let pos = self.next().start;
        while self.is(Kind::Ident) {
            self.next();
        }
        let name = self.symbol()?;
        let args = self.list(b'(', b')', Self::arg)?;
        let mut result_attrs = Vec::new();
        if self.is(Kind::Arrow) {
            self.next();
            if self.is_punct(b'(') {
                result_attrs = self.list(b'(', b')', |p| {
                    p.ty()?;
                    let attrs = if p.is_punct(b'{') { p.dictionary(b'{', b'}')? } else { Vec::new() };
                    p.skip_location()?;
                    Ok(attrs)
                })?;
            } else {
                self.ty()?;
            }
        }
        if self.eat_word("attributes") {
            self.dictionary(b'{', b'}')?;
        }
        let body = self.block()?;
        self.skip_location()?;
        Ok(Func { name, args, result_attrs, body, pos })
    }

    /// `%x: tensor<f32> {attributes} loc("x")`.
    pub(super) fn arg(&mut self) -> Parsed<Arg<'a>> {
        let pos = self.token.start;
        let name = self.expect_kind(Kind::Value, "an argument")?;
        self.expect(b':')?;
        let ty = self.ty()?;
        if self.is_punct(b'{') {
            self.dictionary(b'{', b'}')?;
        }
        let label = self.skip_location()?;
        Ok(Arg { name, ty, label, pos })
    }

    /// `{ operations }`.
    pub(super) fn block(&mut self) -> Parsed<Vec<Op<'a>>> {
        self.enter()?;
        self.expect(b'{')?;
        let mut ops = Vec::new();
        while !self.eat(b'}') {
            if self.is(Kind::Eof) {
                return Err(self.unexpected("'}'"));
            }
            if self.is(Kind::Block) {
                let message = "more than one block is not supported: StableHLO has structured control flow";
                return Err(self.error(self.token.start, message));
            }
            ops.push(self.op()?);
        }
        self.leave();
        Ok(ops)
    }

    /// `{ ^bb0(arguments): operations }`.
    pub(super) fn region(&mut self) -> Parsed<Region<'a>> {
        // The label comes after the brace, so it is looked for from there.
        let open = self.token.start;
        self.expect(b'{')?;
        let mut args = Vec::new();
        if self.is(Kind::Block) {
            self.next();
            if self.is_punct(b'(') {
                args = self.list(b'(', b')', Self::arg)?;
            }
            if !self.is_punct(b':') {
                return Err(self.unexpected("':'"));
            }
            // The block begins where its brace would be.
            self.next();
            let ops = self.ops_until_brace()?;
            return Ok(Region { args, ops });
        }
        self.seek(open);
        Ok(Region { args, ops: self.block()? })
    }

    fn ops_until_brace(&mut self) -> Parsed<Vec<Op<'a>>> {
        self.enter()?;
        let mut ops = Vec::new();
        while !self.eat(b'}') {
            if self.is(Kind::Eof) {
                return Err(self.unexpected("'}'"));
            }
            ops.push(self.op()?);
        }
        self.leave();
        Ok(ops)
    }

    /// An operation in any form.
    pub(super) fn op(&mut self) -> Parsed<Op<'a>> {
        let pos = self.token.start;
        let mut results = Vec::new();
        while self.is(Kind::Value) {
            let t = self.next();
            let count = match self.eat(b':') {
                true => {
                    let n = self.expect_kind(Kind::Int, "a number of results")?;
                    n.parse().map_err(|_| self.unexpected("a number of results"))?
                }
                false => 1,
            };
            results.push((self.slice(t), count));
            if !self.eat(b',') {
                self.expect(b'=')?;
                break;
            }
        }
        let generic = self.is(Kind::Str);
        let t = self.next();
        let name = match t.kind {
            Kind::Str | Kind::Ident => Self::unquote(self.slice(t)),
            _ => return Err(self.error(t.start, "an operation is expected")),
        };
        let mut op = Op {
            name,
            results,
            operands: Vec::new(),
            attrs: Vec::new(),
            words: Vec::new(),
            regions: Vec::new(),
            types: Vec::new(),
            pos,
        };
        if generic {
            self.generic(&mut op)?
        } else {
            self.pretty(&mut op)?
        }
        self.skip_location()?;
        if op.types.len() != op.result_count() {
            let message = match op.types.len() {
                0 => format!("the types of the results of {} are missing", op.name),
                types => format!("{} has {} results of {types} types", op.name, op.result_count()),
            };
            return Err(self.error(pos, message));
        }
        Ok(op)
    }

    /// `(operands) <{properties}> ({regions}) {attributes} : (types) -> types`.
    fn generic(&mut self, op: &mut Op<'a>) -> Parsed<()> {
        op.operands = self.list(b'(', b')', |p| p.expect_kind(Kind::Value, "an operand"))?;
        if self.eat(b'<') {
            op.attrs = self.dictionary(b'{', b'}')?;
            self.expect(b'>')?;
        }
        if self.is_punct(b'(') {
            op.regions = self.list(b'(', b')', Self::region)?;
        }
        if self.is_punct(b'{') {
            op.attrs.extend(self.dictionary(b'{', b'}')?);
        }
        self.expect(b':')?;
        let (_, after) = self.signature()?;
        op.types = after.unwrap_or_default();
        Ok(())
    }
}

/// `"func.func"() <{sym_name = "main"}> ({ … })`.
fn generic_func(op: Op<'_>) -> Option<Func<'_>> {
    let Some(Attr::Str(name)) = op.attr("sym_name").cloned() else { return None };
    let result_attrs = match op.attr("res_attrs") {
        Some(Attr::List(list)) => {
            let dict = |a: &Attr| if let Attr::Dict(d) = a { d.clone() } else { Vec::new() };
            list.iter().map(dict).collect()
        }
        _ => Vec::new(),
    };
    let pos = op.pos;
    let region = op.regions.into_iter().next()?;
    Some(Func { name, args: region.args, result_attrs, body: region.ops, pos })
}

/// Types of results where the signature has no arrow: the last ones, or one for all.
pub(super) fn result_types(list: Vec<Ty>, count: usize) -> Vec<Ty> {
    match list.as_slice() {
        [one] if count > 1 => vec![one.clone(); count],
        _ => list[list.len().saturating_sub(count)..].to_vec(),
    }
}

/// Whether the entry `key` is there.
pub(super) fn has(entries: &[(String, Attr)], key: &str) -> bool {
    find(entries, key).is_some()
}
