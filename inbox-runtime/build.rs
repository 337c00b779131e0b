//! Needed by the `links` key of the manifest, which makes cargo refuse two versions of this crate in one program.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
