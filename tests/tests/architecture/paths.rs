//! Every file and folder that `ARCHITECTURE.md` names is there.

use std::{fs, path::Path};

#[test]
fn every_file_that_the_architecture_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the text");
    let is_path = |word: &&str| word.contains('/') && !word.contains(' ');
    let named: Vec<_> = text.split('`').skip(1).step_by(2).filter(is_path).collect();
    assert!(named.len() > 40, "the text is read");
    for path in named {
        assert!(
            root.join(path).exists(),
            "ARCHITECTURE.md names {path}, which isn't there"
        );
    }
}
