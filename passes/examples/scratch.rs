fn main() {
    let a: Vec<String> = std::env::args().collect();
    let text = std::fs::read_to_string(&a[1]).unwrap();
    let mut m = of_ir::text::parse_module(&text, &a[1], &of_ops::registry(), None).unwrap_or_else(|e| panic!("{e:?}"));
    match of_passes::Manager::parse(&a[2]).and_then(|p| p.run(&mut m, &mut |s| eprint!("{s}")).map(|_| ())) {
        Ok(()) => println!("{m:?}"),
        Err(e) => println!("{e:?}"),
    }
}
