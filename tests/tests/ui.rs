//! What the attribute says about each mistake, to the letter. See `ui/README.md`.
//!
//! The compiler lists what could have been written, which depends on the features: the texts are those of the defaults.
#![cfg(not(feature = "postgres"))]

#[test]
fn f53_f89_a_wrong_attribute_is_one_error_on_the_key_or_the_value() {
    trybuild::TestCases::new().compile_fail("ui/args/*.rs");
}

#[test]
fn f88_f89_f90_a_wrong_signature_is_one_error_on_the_token() {
    trybuild::TestCases::new().compile_fail("ui/signature/*.rs");
}

#[test]
fn f89_a_wrong_type_is_one_error_on_the_type() {
    trybuild::TestCases::new().compile_fail("ui/types/*.rs");
}

#[test]
fn f86_a_handler_compiles_without_a_prelude() {
    trybuild::TestCases::new().pass("ui/pass/*.rs");
}
