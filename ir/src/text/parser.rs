//! Modules, functions and meshes.

use std::path::Path;
use std::sync::Arc;

use of_diag::{Code, Diagnostics, Location};

use super::cursor::{ParseResult, Parser, WithHint};
use super::lexer::{Kind, Lexer, Token};
use super::locs::Aliases;
use super::module_parser::ModuleParser;
use super::op_parser::{Body, accepts};
use super::source_index::{FuncSource, MeshSource, SourceIndex};
use super::{CheckedData, Indexed};
use crate::{Attr, Attrs, Func, Graph, IdSet, Mesh, MeshPart, Module, Registry, Type, ValueId};

pub(super) fn parse_module(
    text: &str,
    file_name: &str,
    registry: &Registry,
    base_dir: Option<&Path>,
) -> Result<Module, Diagnostics> {
    let m = read(text, file_name, registry, base_dir, None);
    Diagnostics(m.errors).into_result(m.module)
}

pub(super) fn parse_indexed(
    text: &str,
    file_name: &str,
    registry: &Registry,
    base_dir: Option<&Path>,
    checked: &CheckedData,
) -> Indexed {
    let m = read(text, file_name, registry, base_dir, Some(checked));
    Indexed { module: m.module, index: m.index.unwrap_or_default(), errors: Diagnostics(m.errors) }
}

/// Reads a text; with `checked`, makes an index and goes on after errors.
fn read<'a>(
    text: &'a str,
    file_name: &str,
    registry: &'a Registry,
    base_dir: Option<&'a Path>,
    checked: Option<&'a CheckedData>,
) -> ModuleParser<'a> {
    let mut m = ModuleParser {
        p: Parser::new(text, file_name, base_dir),
        registry,
        aliases: Aliases::find(text),
        errors: Vec::new(),
        module: Module::default(),
        fresh: last_fresh(text),
        index: checked.map(|_| SourceIndex::default()),
    };
    if let Some(checked) = checked {
        m.p.data.know(checked);
    }
    if let Err(e) = m.items(Wrapped::No) {
        m.errors.push(*e);
    }
    // Reported in the order of reading, which for an op is after all of it.
    crate::sort::by_key(&mut m.errors, |d| match &d.location {
        Location::Source { line, col, .. } => (*line, *col),
        _ => (0, 0),
    });
    m
}

/// Parses a text that consists of exactly one item.
pub(super) fn parse_whole<T>(
    text: &str,
    name: &str,
    read: impl FnOnce(&mut Parser<'_>) -> ParseResult<T>,
) -> Result<T, Diagnostics> {
    let mut p = Parser::new(text, name, None);
    let r =
        read(&mut p).and_then(|v| if p.tok.kind == Kind::Eof { Ok(v) } else { Err(p.expected("the end of the text")) });
    r.map_err(|e| Diagnostics::from(*e))
}

/// The largest `n` of a symbol `u<n>` in the text: fresh symbols count on from there.
fn last_fresh(text: &str) -> u32 {
    // A text that names a larger one is not worth a panic when the count overflows.
    const MAX_NUMBER: u32 = 1 << 30;
    let mut lexer = Lexer::new(text);
    let mut last = 0;
    loop {
        let t = lexer.next();
        let word = match t.kind {
            Kind::Eof => return last,
            Kind::Ident => &text[t.start..t.end],
            Kind::Str => &text[t.start + 1..t.end - 1],
            _ => continue,
        };
        let n = word.strip_prefix('u').and_then(|n| n.parse().ok());
        last = n.filter(|n| *n < MAX_NUMBER).map_or(last, |n| last.max(n));
    }
}

/// Whether a module's own brackets are open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wrapped {
    Yes,
    No,
}

/// Whether a list of items ended.
enum Ended {
    Yes,
    No,
}

/// A result of a function's signature.
struct Declared {
    at: Token,
    ty: Type,
    name: Option<String>,
}

impl ModuleParser<'_> {
    fn items(&mut self, wrapped: Wrapped) -> ParseResult<()> {
        let mut modules = 0;
        loop {
            let first = self.p.tok;
            match self.item(wrapped, &mut modules) {
                Ok(Ended::Yes) => return Ok(()),
                Ok(Ended::No) => {}
                Err(e) if self.index.is_some() => {
                    self.report_syntax(*e);
                    self.skip_to_item(first);
                    if self.p.tok.kind == Kind::Eof {
                        return Ok(());
                    }
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Skips what follows an error in the item that begins with `first`.
    fn skip_to_item(&mut self, first: Token) {
        // An alias of a location may be read before the item.
        if self.p.tok.start <= first.start {
            self.p.seek(first.end);
        }
        let end = self.p.end;
        if let Some(f) = self.func_index().filter(|f| f.whole.start == first.start) {
            f.finish(end);
        }
        let begins = |p: &Parser<'_>| {
            matches!(p.peek(), "func" | "module" | "of.mesh" | "\"of.func\"" | "\"of.mesh\"") && p.begins_line(p.tok)
        };
        while self.p.tok.kind != Kind::Eof && !begins(&self.p) {
            self.p.bump();
        }
    }

    /// Reads one item; says whether instead the items ended.
    fn item(&mut self, wrapped: Wrapped, modules: &mut usize) -> ParseResult<Ended> {
        let t = self.p.tok;
        if matches!((t.kind, self.p.peek()), (Kind::Ident, "module") | (Kind::Str, "\"builtin.module\"")) {
            *modules += 1;
            if *modules > 1 {
                return Err(self.p.error(t, "a text holds one module, this is the second"));
            }
        }
        match (t.kind, self.p.peek()) {
            (Kind::Eof, _) if wrapped == Wrapped::No => return Ok(Ended::Yes),
            (Kind::Punct(b'}'), _) if wrapped == Wrapped::Yes => return Ok(Ended::Yes),
            (Kind::Ident, "module") | (Kind::Str, "\"builtin.module\"") if wrapped == Wrapped::Yes => {
                return Err(self.p.error(t, "modules cannot be nested"));
            }
            (Kind::Ident, "module") => self.pretty_module()?,
            (Kind::Ident, "func") => self.pretty_func()?,
            (Kind::Ident, "of.mesh") => self.pretty_mesh()?,
            (Kind::Str, "\"builtin.module\"") => self.generic_module()?,
            (Kind::Str, "\"of.func\"") => self.generic_func()?,
            (Kind::Str, "\"of.mesh\"") => self.generic_mesh()?,
            (Kind::Hash, _) => {
                self.p.bump();
                self.p.expect(b'=', "after the name of a location")?;
                self.p.loc(&self.aliases)?;
            }
            _ => {
                let e = self.p.expected("a function or a mesh");
                return Err(e.with_hint("func @name(…) { … }, of.mesh @name {…}, or both inside module { … }"));
            }
        }
        Ok(Ended::No)
    }

    // ---- modules ----

    /// `module @name { … }`.
    fn pretty_module(&mut self) -> ParseResult<()> {
        self.p.bump();
        if self.p.tok.kind == Kind::Symbol {
            self.module.name = self.p.symbol("the name of the module")?.to_string();
        }
        self.p.expect(b'{', "before the module's contents")?;
        self.items(Wrapped::Yes)?;
        self.p.expect(b'}', "after the module's contents")?;
        self.p.trailing_loc(&self.aliases)?;
        Ok(())
    }

    /// `"builtin.module"() ({ … }) {sym_name = "name"} : () -> ()`.
    fn generic_module(&mut self) -> ParseResult<()> {
        self.p.bump();
        let mut attrs = self.properties()?;
        self.p.expect(b'(', "before the region")?;
        self.p.expect(b'{', "before the module's contents")?;
        self.items(Wrapped::Yes)?;
        self.p.expect(b'}', "after the module's contents")?;
        self.p.expect(b')', "after the region")?;
        if self.p.at(b'{') {
            self.p.attrs()?.iter().for_each(|(n, a)| attrs.set(n.clone(), a.clone()));
        }
        self.nothing_to_nothing()?;
        if let Some(Attr::Str(name)) = attrs.get("sym_name") {
            self.module.name = name.to_string();
        }
        self.p.trailing_loc(&self.aliases)?;
        Ok(())
    }

    /// `()`, and the `<{…}>` in which upstream writes the properties of its own ops.
    fn properties(&mut self) -> ParseResult<Attrs> {
        self.p.expect(b'(', "after the op")?;
        self.p.expect(b')', "after '(': operands are not allowed here")?;
        if !self.p.eat(b'<') {
            return Ok(Attrs::new());
        }
        let attrs = self.p.attrs()?;
        self.p.expect(b'>', "after the properties")?;
        Ok(attrs)
    }

    /// `: () -> ()`.
    fn nothing_to_nothing(&mut self) -> ParseResult<()> {
        self.p.expect(b':', "before the types")?;
        let at = self.p.tok;
        let operands = self.p.types("the operand types")?;
        self.p.expect_kind(Kind::Arrow, "'->'")?;
        let results = self.p.types("the result types")?;
        if operands.is_empty() && results.is_empty() {
            Ok(())
        } else {
            Err(self.p.error(at, "operands and results are not allowed here"))
        }
    }

    // ---- meshes ----

    /// `of.mesh @m {devices = "cpu", shape = [2, 4]}`.
    fn pretty_mesh(&mut self) -> ParseResult<()> {
        let at = self.p.bump();
        let name = self.p.symbol("the name of the mesh")?;
        let attrs = self.p.attrs()?;
        self.add_mesh(at, &name, &attrs)
    }

    /// `"of.mesh"() {devices = "cpu", shape = array<i64: 2, 4>, sym_name = "m"} : () -> ()`.
    fn generic_mesh(&mut self) -> ParseResult<()> {
        let at = self.p.bump();
        self.properties()?;
        let attrs = self.p.attrs()?;
        self.nothing_to_nothing()?;
        self.p.trailing_loc(&self.aliases)?;
        match attrs.get("sym_name") {
            Some(Attr::Str(name)) => self.add_mesh(at, name, &attrs),
            _ => Err(self.p.error_of(Code::ATTRIBUTE, at, "a mesh needs sym_name, a string")),
        }
    }

    fn add_mesh(&mut self, at: Token, name: &str, attrs: &Attrs) -> ParseResult<()> {
        if let Some(index) = &mut self.index {
            index.meshes.push(MeshSource { symbol: name.to_owned(), at: at.into() });
        }
        let sizes = |v: &[i64]| v.iter().map(|n| usize::try_from(*n).ok()).collect::<Option<Vec<_>>>();
        let part = match attrs.get("part") {
            None => Some(None),
            Some(Attr::Ints(p)) => sizes(p).and_then(|p| match p.as_slice() {
                [axis, index, of] => Some(Some(MeshPart { axis: *axis, index: *index, of: *of })),
                _ => None,
            }),
            Some(_) => None,
        };
        let mesh = match (attrs.get("devices"), attrs.get("shape")) {
            (Some(Attr::Str(d)), Some(Attr::Ints(s))) => sizes(s).zip(part).map(|(shape, part)| {
                let devices = d.to_string();
                Mesh { devices, shape, part }
            }),
            _ => None,
        };
        let Some(mesh) = mesh else {
            let e = self.p.error_of(Code::ATTRIBUTE, at, "a mesh needs devices and shape");
            return Err(e.with_hint("of.mesh @m {devices = \"cpu\", shape = [2, 4]}"));
        };
        if self.module.meshes.insert(name.to_owned(), mesh).is_some() {
            self.report(Code::NAME, at, format!("mesh @{name} is defined twice"));
        }
        Ok(())
    }

    // ---- functions ----

    fn new_graph(&self) -> Graph {
        let mut graph = Graph::new();
        graph.fresh = self.fresh;
        graph
    }

    /// Begins the index of a function with its first token.
    fn begin_func(&mut self, first: Token) {
        if let Some(index) = &mut self.index {
            index.funcs.push(FuncSource::begin(first));
        }
    }

    fn add_func(&mut self, at: Token, name: &str, func: Func) {
        let end = self.p.end;
        if let Some(index) = &mut self.index {
            // The module holds the last function of a name.
            index.funcs.iter_mut().filter(|f| f.symbol == name).for_each(|f| f.in_module = false);
            if let Some(f) = index.funcs.last_mut() {
                (f.symbol, f.name, f.in_module) = (name.to_owned(), at.into(), true);
                f.finish(end);
            }
        }
        if self.module.funcs.insert(name.to_owned(), func).is_some() {
            self.report(Code::NAME, at, format!("function @{name} is defined twice"));
        }
    }

    /// `func @main(%x: T {of.name = "x"}) -> (T) attributes {…} { … }`.
    fn pretty_func(&mut self) -> ParseResult<()> {
        let at = self.p.bump();
        self.begin_func(at);
        let here = self.p.location(at);
        let name_at = self.p.tok;
        let name = self.p.symbol("the name of the function")?;
        let mut graph = self.new_graph();
        let entry = graph.entry();
        let mut body = Body::new(self, &mut graph);
        let mut inputs = Vec::new();
        body.args(entry, &mut inputs)?;
        let declared = body.m.func_results()?;
        let attrs = if body.m.p.eat_word("attributes") { body.m.p.attrs()? } else { Attrs::new() };
        body.region(entry)?;
        let mut outputs = body.last_operands();
        let is_broken = body.into_broken();
        if let Some(declared) = declared {
            self.check_results(name_at, &graph, &declared, &is_broken);
            if graph.terminator(entry).is_none() {
                outputs.clear();
            }
            for (i, d) in declared.into_iter().enumerate() {
                if let (Some(slot), Some(name)) = (outputs.get_mut(i), d.name) {
                    *slot = name;
                }
            }
        }
        let loc = self.p.trailing_loc(&self.aliases)?.unwrap_or(here);
        self.add_func(name_at, &name, Func { graph, inputs, outputs, attrs, loc });
        Ok(())
    }

    /// `-> (T {of.name = "y"}, …)`.
    fn func_results(&mut self) -> ParseResult<Option<Vec<Declared>>> {
        if self.p.tok.kind != Kind::Arrow {
            return Ok(None);
        }
        self.p.bump();
        let mut all = Vec::new();
        self.p.list(b'(', b')', "the results", |p| {
            let at = p.tok;
            let ty = p.ty()?;
            all.push(Declared { at, ty, name: p.of_name()? });
            Ok(())
        })?;
        Ok(Some(all))
    }

    /// Compares the declared results with those returned, other than `broken` ones, whose errors are reported already.
    fn check_results(&mut self, at: Token, graph: &Graph, declared: &[Declared], broken: &IdSet<ValueId>) {
        if graph.terminator(graph.entry()).is_none() {
            // The verifier reports it, with the op found instead of the terminator.
            return;
        }
        let outputs = graph.outputs();
        if outputs.len() != declared.len() {
            let what = format!("the function declares {} results and returns {}", declared.len(), outputs.len());
            return self.report(Code::ARITY, at, what);
        }
        for (d, v) in declared.iter().zip(outputs) {
            if !broken.contains(v) && !accepts(&d.ty, graph.ty(*v)) {
                self.report(Code::TYPE, d.at, format!("the function declares {} and returns {}", d.ty, graph.ty(*v)));
            }
        }
    }

    /// `"of.func"() ({ … }) {inputs = ["x"], outputs = ["y"], sym_name = "main"} : () -> ()`.
    fn generic_func(&mut self) -> ParseResult<()> {
        let at = self.p.bump();
        self.begin_func(at);
        let here = self.p.location(at);
        self.properties()?;
        self.p.expect(b'(', "before the region")?;
        let mut graph = self.new_graph();
        let entry = graph.entry();
        let mut body = Body::new(self, &mut graph);
        let mut arg_names = Vec::new();
        body.region_with_args(entry, &mut arg_names)?;
        let operands = body.last_operands();
        self.p.expect(b')', "after the region")?;

        let (mut name, mut inputs, mut outputs, mut attrs) = (None::<Arc<str>>, None, None, Attrs::new());
        self.p.dict(|p, at, key, _| {
            match &*key {
                "sym_name" => name = Some(p.string("the name of the function")?),
                "inputs" => inputs = Some(p.strings()?),
                "outputs" => outputs = Some(p.strings()?),
                "attrs" => attrs = p.attrs()?,
                _ => {
                    let e = p.error_of(Code::ATTRIBUTE, at, format!("'of.func' has no attribute '{key}'"));
                    return Err(e.with_hint("it has sym_name, inputs, outputs and attrs"));
                }
            }
            Ok(())
        })?;
        self.nothing_to_nothing()?;
        let loc = self.p.trailing_loc(&self.aliases)?.unwrap_or(here);
        let Some(name) = name else {
            return Err(self.p.error_of(Code::ATTRIBUTE, at, "a function needs sym_name, a string"));
        };
        let terminated = graph.terminator(entry).is_some();
        let outputs = outputs.unwrap_or(if terminated { operands } else { Vec::new() });
        self.add_func(at, &name, Func { graph, inputs: inputs.unwrap_or(arg_names), outputs, attrs, loc });
        Ok(())
    }
}

impl Parser<'_> {
    /// `{of.name = "x"}`, if it comes next.
    pub fn of_name(&mut self) -> ParseResult<Option<String>> {
        let mut found = None;
        if self.at(b'{') {
            self.dict(|p, at, key, _| {
                if &*key != "of.name" {
                    return Err(p.error_of(Code::ATTRIBUTE, at, "only of.name is allowed here"));
                }
                found = Some(p.string("a name")?.to_string());
                Ok(())
            })?;
        }
        Ok(found)
    }

    /// `["a", "b"]`.
    fn strings(&mut self) -> ParseResult<Vec<String>> {
        let empty = self.tok.kind == Kind::Hash;
        match self.attr()? {
            Attr::Strs(v) => Ok(v.iter().map(|s| s.to_string()).collect()),
            Attr::Array(v) if v.is_empty() && !empty => Ok(Vec::new()),
            _ => Err(self.error(self.tok, "expected a list of strings before this")),
        }
    }
}
