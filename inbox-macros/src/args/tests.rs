//! Values that are read, and those that are not. Where the errors stand is shown by the ui tests.
#![allow(clippy::needless_pass_by_value, reason = "the callers are shorter without borrows")]

use proc_macro2::TokenStream;
use proptest::prelude::*;
use quote::quote;

use super::*;

fn with(more: TokenStream) -> syn::Result<Args> {
    parse(quote!(group = "billing", subject = "order.created", #more))
}

fn args(more: TokenStream) -> Args {
    with(more).unwrap_or_else(|error| panic!("{error}"))
}

fn errors(more: TokenStream) -> Vec<String> {
    with(more)
        .err()
        .into_iter()
        .flatten()
        .map(|error| error.to_string())
        .collect()
}

#[test]
fn nothing_is_stated_by_default() {
    let args = args(quote!());
    assert_eq!((args.ack, args.ack_span.is_some()), (Ack::ExactlyOnce, false));
    assert_eq!((args.id, args.start, args.timeout), (None, None, None));
    assert_eq!((args.max_attempts, args.backoff, args.concurrency), (None, None, None));
    assert!(args.stream.is_none() && args.ordered.is_none());
    assert!(args.runtime.is_none());
}

#[test]
fn ack_and_commit_make_one_strategy() {
    let ack = |more| args(more).ack;
    assert_eq!(ack(quote!(ack = "exactly_once")), Ack::ExactlyOnce);
    assert_eq!(ack(quote!(ack = "at_most_once")), Ack::AtMostOnce);
    assert_eq!(ack(quote!(ack = "at_least_once")), Ack::AtLeastOnce);
    assert_eq!(
        ack(quote!(ack = "at_least_once", commit = "on_success")),
        Ack::AtLeastOnce
    );
    assert_eq!(
        ack(quote!(commit = "on_persist", ack = "at_least_once")),
        Ack::OnPersist
    );
    assert_eq!(errors(quote!(ack = "at_most_once", commit = "on_success")).len(), 1);
}

#[test]
fn starts_are_read() {
    let start = |more| args(more).start;
    assert_eq!(start(quote!(start = "first")), Some(Start::First));
    assert_eq!(start(quote!(start = "new")), Some(Start::New));
    assert_eq!(
        start(quote!(start = "2026-01-31T00:00:00Z")),
        Some(Start::Time(1_769_817_600_000))
    );
    assert_eq!(
        start(quote!(start = "1970-01-01T00:00:00.250Z")),
        Some(Start::Time(250))
    );
    assert_eq!(start(quote!(start = "sequence:7")), Some(Start::Sequence(7)));
    for wrong in [
        "2026-01-31",
        "2026-01-31T00:00:00+01:00",
        "2026-13-01T00:00:00Z",
        "1769817600",
    ] {
        let said = errors(quote!(start = #wrong));
        assert!(said.len() == 1 && said[0].contains("is not a time in UTC"), "{said:?}");
    }
    for wrong in ["sequence:", "sequence:0", "sequence:-1", "sequence:x"] {
        let said = errors(quote!(start = #wrong));
        assert!(said.len() == 1 && said[0].contains("a whole number from 1"), "{said:?}");
    }
}

#[test]
fn ids_are_read() {
    let id = |more| args(more).id;
    assert_eq!(id(quote!(id = "position")), Some(Id::Position));
    assert_eq!(
        id(quote!(id = "header:Nats-Msg-Id")),
        Some(Id::Header("Nats-Msg-Id".to_owned()))
    );
    assert_eq!(
        id(quote!(id = "json:/order/id")),
        Some(Id::Json("/order/id".to_owned()))
    );
    assert_eq!(
        id(quote!(id = "json:/a~1b/~0/0")),
        Some(Id::Json("/a~1b/~0/0".to_owned()))
    );
    assert_eq!(errors(quote!(id = "json:/a~")).len(), 1);
    assert_eq!(errors(quote!(id = "json:")).len(), 1);
    assert_eq!(errors(quote!(id = "")).len(), 1);
}

#[test]
fn numbers_and_durations_are_read() {
    assert_eq!(args(quote!(timeout = "1m 30s")).timeout, Some(90_000));
    assert_eq!(args(quote!(timeout = "365days")).timeout, Some(365 * 24 * 3_600_000));
    assert_eq!(args(quote!(max_attempts = 1)).max_attempts, Some(Attempts::Limit(1)));
    assert_eq!(
        args(quote!(max_attempts = 4_294_967_295)).max_attempts,
        Some(Attempts::Limit(u32::MAX))
    );
    assert_eq!(
        args(quote!(max_attempts = "unlimited")).max_attempts,
        Some(Attempts::Unlimited)
    );
    assert_eq!(args(quote!(concurrency = 1024)).concurrency, Some(1024));
    assert_eq!(args(quote!(backoff = "5s")).backoff, Some((5_000, 5_000)));
    assert_eq!(args(quote!(backoff = "1s ..= 5m")).backoff, Some((1_000, 300_000)));
    assert_eq!(errors(quote!(max_attempts = 4_294_967_296)).len(), 1);
    assert_eq!(errors(quote!(concurrency = 1025)).len(), 1);
    assert_eq!(errors(quote!(timeout = "366days")).len(), 1);
}

#[test]
fn a_stream_and_an_order_are_read() {
    let stream = |more| args(more).stream.map(|stream| stream.value());
    assert_eq!(stream(quote!(stream = "ORDERS")).as_deref(), Some("ORDERS"));
    for wrong in ["", "a b", "a.b", "*", ">", "a/b", &"x".repeat(256)] {
        assert_eq!(errors(quote!(stream = #wrong)).len(), 1, "{wrong}");
    }
    assert_eq!(args(quote!(ordered = true)).ordered, Some(true));
    assert_eq!(args(quote!(ordered = false, concurrency = 4)).ordered, Some(false));
    assert_eq!(args(quote!(ordered = true, concurrency = 1)).ordered, Some(true));
    assert_eq!(errors(quote!(ordered = "true")).len(), 1);
    assert_eq!(errors(quote!(ordered = true, concurrency = 2)).len(), 1);
}

#[test]
fn what_macro_rules_wraps_in_a_group_is_read() {
    let wrap = |tokens| {
        let group = proc_macro2::Group::new(proc_macro2::Delimiter::None, tokens);
        TokenStream::from(proc_macro2::TokenTree::Group(group))
    };
    let (literal, path) = (wrap(quote!("billing")), wrap(quote!(names::SUBJECT)));
    let args = parse(quote!(group = #literal, subject = #path)).unwrap_or_else(|error| panic!("{error}"));
    assert!(matches!(args.group, Text::Literal(_)));
    assert!(matches!(args.subject, Text::Const(_)));
}

#[test]
fn f89_all_errors_come_at_once_and_none_twice() {
    assert_eq!(
        errors(quote!(gruop = "x", group = "y", timeout = "0s", concurrency = 0)).len(),
        4
    );
    let lone = |tokens: TokenStream| parse(tokens).err().into_iter().flatten().count();
    assert_eq!(lone(quote!()), 1);
    assert_eq!(lone(quote!(gruop = "billing", topic = "order.created")), 2);
    assert_eq!(lone(quote!("billing", "order.created")), 1);
    assert_eq!(lone(quote!(group "billing", subject "order.created")), 1);
    assert_eq!(lone(quote!(gruop = "a", group = "b", subject = "c")), 1);
    assert_eq!(lone(quote!(,)), 1);
    assert_eq!(lone(quote!(group = 5, subject = 6)), 2);
    assert_eq!(
        lone(quote!(
            group = "a",
            subject = "b",
            akc = "at_least_once",
            commit = "on_persist"
        )),
        1
    );
}

#[test]
fn f53_names_are_checked_as_the_runtime_checks_them() {
    for group in ["", "a b", "*", ">", "café", "a/b", &"x".repeat(300)] {
        assert!(
            parse(quote!(group = #group, subject = "order.created")).is_err(),
            "{group}"
        );
    }
    for group in ["billing.v2", "Billing-2_b"] {
        assert!(
            parse(quote!(group = #group, subject = "order.created")).is_ok(),
            "{group}"
        );
    }
}

proptest! {
    #[test]
    fn every_duration_comes_back(millis in 1_u64..=365 * 24 * 3_600_000) {
        let written = humantime::format_duration(std::time::Duration::from_millis(millis)).to_string();
        prop_assert_eq!(args(quote!(timeout = #written)).timeout, Some(millis));
    }

    #[test]
    fn every_backoff_comes_back(first in 1_u64..1_000_000, more in 0_u64..1_000_000) {
        let written = format!("{first}ms..{}ms", first + more);
        prop_assert_eq!(args(quote!(backoff = #written)).backoff, Some((first, first + more)));
        if more > 0 {
            let falling = format!("{}ms..{first}ms", first + more);
            prop_assert_eq!(errors(quote!(backoff = #falling)).len(), 1);
        }
    }

    #[test]
    fn no_text_makes_it_panic(text in ".{0,24}", key in 0_usize..13) {
        let key = quote::format_ident!("{}", suggest::KEYS[key].name);
        let _ = parse(quote!(#key = #text));
    }
}
