//! `cargo xtask gpu`: checks and measures a machine with a GPU that has neither Rust nor a network.
//!
//! `--out DIR` writes the pack: of-opt and the Python files of `pack/`, which make models, plans and expected results on that
//! machine. `report FILE` prints the results as tables.

mod report;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::workspace::{cargo, of_opt, read, run, write};

/// Bytes of a pack at most, unless `--mib` says otherwise: what is easily copied.
const MAX_PACK_BYTES: u64 = 64 << 20;

/// The files of the pack, in addition to of-opt.
const FILES: [(&str, &str); 9] = [
    ("run.sh", include_str!("pack/run.sh")),
    ("run.py", include_str!("pack/run.py")),
    ("children.py", include_str!("pack/children.py")),
    ("jobs.py", include_str!("pack/jobs.py")),
    ("libraries.py", include_str!("pack/libraries.py")),
    ("torch_suite.py", include_str!("pack/torch_suite.py")),
    ("models.py", include_str!("pack/models.py")),
    ("peers.py", include_str!("pack/peers.py")),
    ("jax_peer.py", include_str!("pack/jax_peer.py")),
];

/// Executes the subcommand.
///
/// # Errors
/// When the arguments are wrong, of-opt cannot be built, the pack is too large, or results cannot be read.
pub fn gpu(args: &[&str]) -> Result<(), String> {
    match args {
        ["--out", out] => pack(Path::new(out), MAX_PACK_BYTES),
        ["--out", out, "--mib", mib] => {
            let mib: u64 = mib.parse().map_err(|e| format!("--mib {mib}: {e}"))?;
            pack(Path::new(out), mib << 20)
        }
        ["report", file] => {
            let text = report::tables(&read(Path::new(file))?).map_err(|why| format!("{file}: {why}"))?;
            print!("{text}");
            Ok(())
        }
        _ => Err("write 'gpu --out DIR [--mib N]' or 'gpu report DIR/results.jsonl'".into()),
    }
}

/// Writes the pack. Other files of the folder, such as results, stay.
fn pack(out: &Path, most: u64) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("{}: {e}", out.display());
    run(cargo().args(["build", "--release", "--package", "of-opt"]))?;
    fs::create_dir_all(out).map_err(failed)?;
    let program = out.join("of-opt");
    fs::copy(of_opt("release"), &program).map_err(failed)?;
    if !Command::new("strip").arg(&program).status().is_ok_and(|s| s.success()) {
        eprintln!("of-opt keeps its symbols: 'strip' is not installed or failed");
    }
    for (name, text) in FILES {
        write(&out.join(name), text)?;
    }
    let bytes = size(out)?;
    if bytes > most {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let what = format!("{} has {} MiB and may have {}", out.display(), mib(bytes), mib(most));
        return Err(format!("{what}; remove files that are not of the pack, or give --mib"));
    }
    println!(
        "{}: {} KiB. Copy it to the machine with the GPU and run 'bash {0}/run.sh' there; then 'cargo xtask gpu report \
         results.jsonl' prints what it found.",
        out.display(),
        bytes >> 10
    );
    Ok(())
}

/// Bytes of all files below a folder.
fn size(dir: &Path) -> Result<u64, String> {
    let failed = |e: std::io::Error| format!("{}: {e}", dir.display());
    let mut sum = 0;
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        sum += if path.is_dir() { size(&path)? } else { fs::metadata(&path).map_err(failed)?.len() };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_pack_is_written() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/gpu/pack");
        let mut there: Vec<String> = fs::read_dir(here)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name != "__pycache__")
            .collect();
        let mut known: Vec<&str> = FILES.iter().map(|(name, _)| *name).collect();
        there.sort();
        known.sort_unstable();
        assert_eq!(there, known);
        assert!(gpu(&["--out"]).is_err() && gpu(&["--out", "x", "--mib", "y"]).is_err());
        assert!(gpu(&["report", "/nowhere"]).is_err());
    }
}
