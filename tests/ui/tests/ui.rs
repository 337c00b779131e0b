//! What the attribute says about each mistake, to the letter. See `README.md`.
//!
//! The compiler lists what could have been written, which depends on the features: this crate has the same ones whatever is
//! tested beside it.

#[test]
fn f53_f89_a_wrong_attribute_is_one_error_on_the_key_or_the_value() {
    trybuild::TestCases::new().compile_fail("args/*.rs");
}

#[test]
fn f88_f89_f90_a_wrong_signature_is_one_error_on_the_token() {
    trybuild::TestCases::new().compile_fail("signature/*.rs");
}

#[test]
fn f89_a_wrong_type_is_one_error_on_the_type() {
    trybuild::TestCases::new().compile_fail("types/*.rs");
}
