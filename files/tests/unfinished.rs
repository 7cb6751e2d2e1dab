//! Removal of all unfinished files. It concerns the whole process, so it has one of its own.

use of_files::{AtomicFile, remove_unfinished, write};

#[test]
fn unfinished_files_are_removed_on_request() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path().join("whole"), "text").unwrap();
    let file = AtomicFile::new(&dir.path().join("f")).unwrap();
    file.write("half").unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    remove_unfinished();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    assert!(file.keep().is_err());
}
