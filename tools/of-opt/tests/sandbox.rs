//! `run --sandbox`: the same results, without what a run does not need. `src/sandbox.rs` tests what is denied.

use std::path::Path;
use std::process::{Command, Output};

use of_test_support::component::{LANDLOCK, available};

#[test]
fn models_run_alike_in_the_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits");
    let of_opt = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_of-opt"));
        let Output { status, stdout, stderr } =
            command.args(args).current_dir(dir.path()).env("OF_CACHE_DIR", dir.path().join("cache")).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (status.code().expect("no signal"), text(stdout), text(stderr))
    };
    let path = |name: &str| digits.join(name).display().to_string();
    let (model, images) = (path("digits.onnx"), path("images.npy"));
    let (code, _, said) = of_opt(&["run", &model, "--sandbox", "--cpu-code", "c"]);
    assert!(code == 2 && said.contains("the C compiler is another program"), "{said}");

    let run = ["run", &model, "--inputs", &images, "--top", "1"];
    let (code, expected, said) = of_opt(&run);
    assert_eq!(code, 0, "{said}");
    let (code, out, said) = of_opt(&[&run[..], &["--sandbox"]].concat());
    let found = if said.contains("this system does not give it") { Err(said.clone()) } else { Ok(()) };
    if !available(&LANDLOCK, found) {
        assert_eq!(code, 3, "{said}");
        return;
    }
    assert_eq!((code, out), (0, expected), "{said}");
    // A plan, with outputs in a new folder, and an input by name.
    assert_eq!(of_opt(&["compile", &model, "-o", "m.plan"]).0, 0);
    let named = format!("image={images}");
    let (code, _, said) = of_opt(&["run", "m.plan", "--sandbox", "--inputs", &named, "--outputs", "new/out"]);
    assert_eq!(code, 0, "{said}");
    assert!(dir.path().join("new/out/output_0.pb").is_file());
}
