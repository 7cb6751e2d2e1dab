use of_ir::*;
use of_ops::interpret::run_graph;
use of_ops::structural::{Constant, NoneValue, Return};
use of_ops::*;

fn tensor(v: &Value) -> &Tensor { match v { Value::Tensor(t) => t, _ => panic!() } }

fn ours() -> Vec<&'static dyn OpDecl> {
    let names = ["transpose","reshape","slice","concat","split","expand","pad","gather","gather_elements","gather_nd","scatter_elements","scatter_nd","tile","range","one_hot","trilu","eye_like","depth_to_space","space_to_depth","nonzero","compress","reverse_sequence","unique","constant_of_shape","squeeze","unsqueeze","flatten"];
    let v: Vec<_> = list::ALL.iter().copied().filter(|d| names.contains(&&d.name()[3..])).collect();
    assert_eq!(v.len(), names.len());
    v
}

/// Graph with all operands constant or args; eval.
fn eval(d: &'static dyn OpDecl, op: &dyn Op, operands: &[Value], constants: bool) -> (Vec<Value>, Vec<Type>) {
    let mut g = Graph::new();
    let e = g.entry();
    let mut rw = Rewriter::new(&mut g, "t");
    let mut ids = vec![]; let mut args = vec![];
    for v in operands {
        ids.push(match v {
            Value::None => rw.create_one(NoneValue {}, &[]).unwrap(),
            Value::Tensor(t) if constants => rw.create_one(Constant { value: t.clone() }, &[]).unwrap(),
            v => { args.push(v.clone()); rw.add_arg(e, interpret::type_of(v), None) }
        });
    }
    let id = rw.create((d.as_def(), op.attrs()), &ids).unwrap_or_else(|e| panic!("{} {e} {:?} {operands:?}", d.name(), op.attrs()));
    let res = rw.graph().op(id).results.to_vec();
    let types = res.iter().map(|r| rw.graph().ty(*r).clone()).collect();
    rw.create(Return {}, &res).unwrap();
    (run_graph(&g, &args).unwrap_or_else(|e| panic!("{} {e}", d.name())), types)
}

#[test]
fn inference_agrees() {
    for d in ours() { for seed in 0..200 {
        let Some(s) = d.sample(seed) else { continue };
        for c in [true, false] {
            let (vals, types) = eval(d, &*s.op, &s.operands, c);
            for (v, t) in vals.iter().zip(&types) {
                let got = interpret::type_of(v);
                assert!(got.compatible(t), "{} seed {seed}: {got} inferred {t}", d.name());
                if c && !["of.nonzero","of.unique"].contains(&d.name()) {
                    assert_eq!(&got, t, "{}", d.name());
                }
            }
        }
        if d.kind() == Kind::Composite {
            // expansion
            let (want, _) = eval(d, &*s.op, &s.operands, true);
            for c in [true, false] {
            let mut g = Graph::new(); let e = g.entry();
            let mut rw = Rewriter::new(&mut g, "t");
            let mut ids = vec![]; let mut args = vec![];
            for (i, v) in s.operands.iter().enumerate() {
                if c || i > 0 { ids.push(rw.create_one(Constant { value: tensor(v).clone() }, &[]).unwrap()); }
                else { args.push(v.clone());
                    let t = tensor(v);
                    let sh: Shape = if t.dtype().is_float() { (0..t.dims().len()).map(|i| if i == 1 { Dim::from(t.dims()[1]) } else {Dim::symbol(format!("s{i}"))}).collect() } else { t.ty().shape.unwrap() };
                    ids.push(rw.add_arg(e, Type::tensor(t.dtype(), sh), None)); }
            }
            let out = match s.op.expand(&mut rw, &ids) { Ok(o) => o, Err(e) => panic!("{} {e}", d.name()) };
            rw.create(Return {}, &out).unwrap();
            assert_eq!(run_graph(&g, &args).unwrap(), want, "{} {c} seed {seed}", d.name());
            }
        }
    }}
}

#[test]
fn gradients_agree() {
    let mut seen = std::collections::BTreeMap::new();
    for d in ours() { for seed in 0..60 {
        let Some(s) = d.sample(seed) else { continue };
        let (vals, _) = eval(d, &*s.op, &s.operands, true);
        let mut r = sample::Rng::new(seed + 1000);
        if vals.iter().any(|v| tensor(v).dtype() != DType::F32) { continue }
        let gs: Vec<Tensor> = vals.iter().map(|v| r.tensor(DType::F32, tensor(v).dims(), -2.0, 2.0)).collect();
        let mut g = Graph::new();
        let mut rw = Rewriter::new(&mut g, "t");
        let mut ids = vec![]; let e = rw.graph().entry();
        let mut args = vec![];
        for v in &s.operands { ids.push(if tensor(v).dtype() == DType::F32 { args.push(v.clone()); rw.add_arg(e, interpret::type_of(v), None) } else { rw.create_one(Constant { value: tensor(v).clone() }, &[]).unwrap() }); }
        let id = rw.create((d.as_def(), s.op.attrs()), &ids).unwrap();
        let results = rw.graph().op(id).results.to_vec();
        let grads: Vec<Option<ValueId>> = gs.iter().map(|t| Some(rw.create_one(Constant { value: t.clone() }, &[]).unwrap())).collect();
        let out = { let mut cx = GradCx { rw: &mut rw, operands: &ids, results: &results, grads: &grads }; s.op.gradient(&mut cx) };
        let Some(out) = out else { continue };
        let out = out.unwrap_or_else(|e| panic!("{} {e}", d.name()));
        *seen.entry(d.name()).or_insert(0) += 1;
        let wanted: Vec<ValueId> = out.iter().filter_map(|v| *v).collect();
        rw.create(Return {}, &wanted).unwrap();
        let got = run_graph(&g, &args).unwrap_or_else(|e| panic!("{} seed {seed} {e}\n", d.name()));
        let loss = |ops: &[Value]| -> f64 {
            let (v, _) = eval(d, &*s.op, ops, true);
            v.iter().zip(&gs).map(|(v, g)| tensor(v).to_f64s().unwrap().iter().zip(g.to_f64s().unwrap()).map(|(a, b)| a * b).sum::<f64>()).sum()
        };
        let mut k = 0;
        for (i, o) in out.iter().enumerate() {
            if o.is_none() { assert!(tensor(&s.operands[i]).dtype() != DType::F32 || d.name() == "of.pad", "{} {i} has no gradient", d.name()); continue }
            let gt = tensor(&got[k]); k += 1;
            let x = tensor(&s.operands[i]);
            assert_eq!(gt.dims(), x.dims(), "{}", d.name());
            let xs = x.to_f64s().unwrap();
            for j in 0..xs.len() {
                let at = |h: f64| { let mut y = xs.clone(); y[j] += h; let mut ops = s.operands.clone(); ops[i] = Tensor::from_elements(DType::F32, x.dims().to_vec(), Elements::Float(y)).unwrap().into(); loss(&ops) };
                let fd = (at(0.01) - at(-0.01)) / 0.02;
                let a = gt.to_f64s().unwrap()[j];
                assert!((fd - a).abs() < 1e-2 * (1.0 + fd.abs()), "{} seed {seed} operand {i}[{j}]: {a} vs {fd} attrs {:?} {:?}", d.name(), s.op.attrs(), s.operands);
            }
        }
    }}
    println!("{seen:?}");
}

fn shard(t: &Tensor, s: Sbp, p: usize, rank: usize, r: &mut sample::Rng) -> Vec<Tensor> {
    let _ = rank;
    match s {
        Sbp::Broadcast => vec![t.clone(); p],
        Sbp::Split(a) => {
            let n = t.dims()[a as usize];
            let sizes: Vec<i64> = (0..p).map(|i| (n / p + usize::from(i < n % p)) as i64).collect();
            let op = movement::Split { axis: a as i64, num_outputs: p as i64 };
            let vals = [t.clone().into(), Tensor::from_i64s(&sizes).into()];
            let mut i = Inputs { values: &vals, types: &[], region: &mut |_, _| Ok(vec![]) };
            op.eval(&mut i).unwrap().iter().map(|v| tensor(v).clone()).collect()
        }
        Sbp::Partial(k) => {
            let v = t.to_f64s().unwrap();
            let mut parts = vec![v.clone(); p];
            for j in 0..v.len() {
                match k {
                    PartialKind::Sum => { let mut left = v[j]; for q in 1..p { let x = r.float(-1., 1.); parts[q][j] = x; left -= x; } parts[0][j] = left; }
                    PartialKind::Prod => { for q in 1..p { parts[q][j] = 2.0; } parts[0][j] = v[j] / 2f64.powi(p as i32 - 1); }
                    PartialKind::Max | PartialKind::Min => { let own = r.int(0, p as i64 - 1) as usize; for q in 0..p { if q != own { parts[q][j] = v[j] + if k == PartialKind::Max { -1.0 } else { 1.0 } * r.float(0., 1.); } } }
                }
            }
            parts.into_iter().map(|v| Tensor::from_elements(t.dtype(), t.dims().to_vec(), if t.dtype().is_float() { Elements::Float(v) } else { Elements::Int(v.iter().map(|x| *x as i128).collect()) }).unwrap()).collect()
        }
    }
}

#[test]
fn signatures_agree() {
    let mut seen = std::collections::BTreeMap::new();
    for d in ours() { for seed in 0..100 {
        let Some(s) = d.sample(seed) else { continue };
        let (want, _) = eval(d, &*s.op, &s.operands, true);
        let mut g = Graph::new();
        let mut rw = Rewriter::new(&mut g, "t");
        let ids: Vec<_> = s.operands.iter().map(|v| rw.create_one(Constant { value: tensor(v).clone() }, &[]).unwrap()).collect();
        let attrs = s.op.attrs();
        let sigs = s.op.sbp(&OpView { graph: &g, operands: &ids, attrs: &attrs, regions: &[] });
        for sig in sigs { for p in [2usize, 3] {
            if !sig.allows(p) { continue }
            assert_eq!(sig.operands.len(), s.operands.len(), "{}", d.name());
            assert_eq!(sig.results.len(), want.len());
            let mut r = sample::Rng::new(seed);
            let shards: Vec<Vec<Tensor>> = s.operands.iter().zip(&sig.operands).map(|(v, b)| shard(tensor(v), *b, p, 0, &mut r)).collect();
            let wshards: Vec<Vec<Tensor>> = want.iter().zip(&sig.results).map(|(v, b)| match b { Sbp::Split(_) => shard(tensor(v), *b, p, 0, &mut r), _ => vec![tensor(v).clone(); p] }).collect();
            let mut sums: Vec<Option<Vec<f64>>> = vec![None; want.len()];
            for q in 0..p {
                let mut ops: Vec<Value> = shards.iter().map(|s| s[q].clone().into()).collect();
                if let Some(i) = s.op.shape_operand() {
                    if let Sbp::Split(_) = sig.results[0] {
                        let dims: Vec<i64> = wshards[0][q].dims().iter().map(|d| *d as i64).collect();
                        if dims.contains(&0) && d.name() == "of.reshape" { continue }
                        ops[i] = Tensor::from_i64s(&dims).into();
                    }
                }
                let (got, _) = eval(d, &*s.op, &ops, true);
                for (k, v) in got.iter().enumerate() {
                    match sig.results[k] {
                        Sbp::Partial(kind) => {
                            let x = tensor(v).to_f64s().unwrap();
                            match &mut sums[k] { None => sums[k] = Some(x), Some(a) => a.iter_mut().zip(x).for_each(|(a, x)| *a = match kind { PartialKind::Sum => *a + x, PartialKind::Prod => *a * x, PartialKind::Max => a.max(x), PartialKind::Min => a.min(x) }) }
                        }
                        _ => assert_eq!(tensor(v), &wshards[k][q], "{} seed {seed} {sig} p={p} q={q} {attrs:?} {:?}", d.name(), s.operands),
                    }
                }
            }
            for (k, sum) in sums.iter().enumerate() { if let Some(sum) = sum {
                for (a, b) in sum.iter().zip(tensor(&want[k]).to_f64s().unwrap()) { assert!((a - b).abs() < 1e-3, "{} {sig} {a} {b}", d.name()); }
            }}
            *seen.entry(d.name()).or_insert(0) += 1;
        }}
    }}
    println!("{seen:?}");
}

fn json(v: &Value) -> String {
    let t = tensor(v);
    let vals = match t.elements() { Elements::Float(v) => v.iter().map(|x| format!("{x}")).collect::<Vec<_>>(), Elements::Int(v) => v.iter().map(|x| format!("{x}")).collect(), _ => vec![] };
    format!("{{\"t\":\"{}\",\"d\":{:?},\"v\":[{}]}}", t.dtype(), t.dims(), vals.join(","))
}
fn attr_json(a: &Attr) -> String {
    match a { Attr::Bool(b) => format!("{}", i32::from(*b)), Attr::Int(i) => i.to_string(), Attr::Str(s) => format!("{s:?}"), Attr::Ints(v) => format!("{v:?}"), Attr::DType(d) => format!("\"{d}\""), Attr::Tensor(t) => json(&t.clone().into()), _ => "null".into() }
}
#[test]
fn dump() {
    use std::io::Write;
    let mut f = std::fs::File::create("/work/scratch/ops2_dump.jsonl").unwrap();
    for d in list::ALL.iter().copied().filter(|d| d.name() == "of.range").chain(ours()) { for seed in 0..60 {
        let Some(s) = d.sample(seed) else { continue };
        let (vals, _) = eval(d, &*s.op, &s.operands, true);
        let attrs: Vec<String> = s.op.attrs().iter().map(|(n, a)| format!("\"{n}\":{}", attr_json(a))).collect();
        let l = |v: &[Value]| v.iter().map(json).collect::<Vec<_>>().join(",");
        writeln!(f, "{{\"n\":\"{}\",\"a\":{{{}}},\"i\":[{}],\"o\":[{}]}}", d.onnx()[0], attrs.join(","), l(&s.operands), l(&vals)).unwrap();
    }}
}

#[test]
fn hostile() {
    let mut ds = ours();
    ds.extend(list::ALL.iter().copied().filter(|d| d.name() == "of.range" || d.name().contains("seq") || d.name().contains("opt") || ["of.if","of.loop","of.scan"].contains(&d.name())));
    let mut r = sample::Rng::new(7);
    let nasty = [i64::MIN, i64::MIN + 1, -1 << 33, -7, -2, -1, 0, 1, 2, 3, 5, 64, 1 << 20, 1 << 41, i64::MAX - 1, i64::MAX];
    let mut fine = 0;
    for d in &ds { for seed in 0..3000u64 {
        let (mut operands, mut attrs) = match d.sample(seed) { Some(s) => (s.operands, s.op.attrs()), None => (vec![], Attrs::new()) };
        let sig = d.signature();
        let random = |r: &mut sample::Rng, deep: bool| -> Value {
            match r.int(0, if deep { 6 } else { 3 }) {
                0 => { let rank = r.int(0, 3) as usize; let dims = r.dims(rank, 0, 3); r.f32s(&dims) }
                1 => { let n = r.int(0, 4) as usize; let v: Vec<i64> = (0..n).map(|_| r.pick(&nasty)).collect(); Tensor::from_i64s(&v).into() }
                2 => { let n = r.pick(&nasty); Tensor::scalar(n).into() }
                3 => { let rank = r.int(0, 3) as usize; let dims = r.dims(rank, 0, 3); let dt = r.pick(&DType::ALL); r.tensor(dt, &dims, -3.0, 3.0).into() }
                4 => Value::None,
                5 => Value::Sequence((0..r.int(0, 3)).map(|_| Tensor::scalar(1f32).into()).collect()),
                _ => Value::Optional(Some(Box::new(Tensor::scalar(1f32).into()))),
            }
        };
        let want = sig.operands.len();
        if operands.is_empty() || r.int(0, 5) == 0 { operands = (0..want).map(|_| random(&mut r, true)).collect(); }
        for o in &mut operands { if r.int(0, 2) == 0 { let deep = r.int(0, 4) == 0; *o = random(&mut r, deep); } }
        if r.int(0, 9) == 0 { operands.pop(); }
        if r.int(0, 1) == 0 { for a in sig.attrs { let v = match a.kind { "integer" => Attr::Int(r.pick(&nasty)), "bool" => Attr::Bool(r.int(0,1)==0), "integer list" => Attr::Ints((0..r.int(0,4)).map(|_| r.pick(&nasty)).collect()), "string" => Attr::Str(r.pick(&["none","add","constant","edge","wrap","reflect","DCR","CRD","mul","x"]).into()), _ => continue };
            if attrs.get(a.name).is_none() || r.int(0,1)==0 { attrs.set(a.name, v); } } }
        let Ok(op) = d.decode(&attrs) else { continue };
        let name = d.name();
        let ops2 = operands.clone();
        let res = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut run = |_: usize, a: &[Value]| Ok(a.to_vec());
            let direct = op.eval(&mut Inputs { values: &operands, types: &[], region: &mut run });
            for c in 0..3 {
                let mut g = Graph::new(); let e = g.entry();
                let mut rw = Rewriter::new(&mut g, "t");
                let mut ids = vec![];
                for v in &operands { ids.push(match v {
                    Value::None => rw.create_one(NoneValue {}, &[]).unwrap(),
                    Value::Tensor(t) if c == 0 => rw.create_one(Constant { value: t.clone() }, &[]).unwrap(),
                    Value::Tensor(t) if c == 2 => { let ty = if r.int(0,3)==0 { TensorType::unranked(t.dtype()) } else { TensorType::new(t.dtype(), (0..t.dims().len()).map(|i| Dim::symbol(format!("n{i}"))).collect()) }; if r.int(0,1)==0 { rw.create_one(Constant { value: t.clone() }, &[]).unwrap() } else { rw.add_arg(e, ty.into(), None) } }
                    v => rw.add_arg(e, interpret::type_of(v), None) }); }
                let regions: Vec<RegionId> = (0..sig.regions).map(|_| rw.new_region()).collect();
                if let Ok(id) = rw.create_with_regions((d.as_def(), attrs.clone()), &ids, &regions) {
                    let results = rw.graph().op(id).results.to_vec();
                    let types: Vec<Type> = results.iter().map(|v| rw.graph().ty(*v).clone()).collect();
                    if let Ok(vals) = &direct { for (v, t) in vals.iter().zip(&types) { if let Value::Tensor(x) = v { assert!(Type::from(x.ty()).compatible(t), "{} inferred {t}", x.ty().fixed_dims().is_some()); fine += 1; } } }
                    let _ = op.sbp(&rw.graph().view(id));
                    let _ = rw.graph().dims_value(results[0]);
                    let grads: Vec<Option<ValueId>> = results.iter().map(|v| Some(*v)).collect();
                    let _ = op.gradient(&mut GradCx { rw: &mut rw, operands: &ids, results: &results, grads: &grads });
                    let _ = op.expand(&mut rw, &ids);
                }
            }
        }));
        assert!(res.is_ok(), "{name} {attrs:?} {ops2:?}");
    }}
    println!("fine {fine}");
}
