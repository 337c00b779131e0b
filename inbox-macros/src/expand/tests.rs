//! The expansion, to the letter. It is part of every user's program, so it stays small.

use proc_macro2::TokenStream;
use quote::quote;

use crate::handler;

fn pretty(tokens: TokenStream) -> String {
    prettyplease::unparse(&syn::parse2(tokens).expect("the expansion is valid Rust"))
}

#[test]
fn expands_the_flagship() {
    let attribute = quote!(group = "billing", subject = "order.created", ack = "exactly_once");
    let function = quote! {
        /// Writes the invoice.
        async fn create_invoice(tx: &mut PgConnection, Json(order): Json<OrderCreated>) -> Result<(), sqlx::Error> {
            sqlx::query("…").bind(order.order_id).execute(&mut *tx).await?;
            Ok(())
        }
    };
    insta::assert_snapshot!(pretty(handler(attribute, &function)));
}

#[test]
fn expands_a_handler_without_a_transaction() {
    let attribute = quote!(group = "mail", subject = "order.>", ack = "at_most_once");
    let function = quote! {
        pub(crate) async fn r#match(_: Meta, State(mailer): State<Mailer>) -> anyhow::Result<Handled> {
            mailer.send().await
        }
    };
    insta::assert_snapshot!(pretty(handler(attribute, &function)));
}

#[test]
fn expands_a_handler_without_arguments() {
    let attribute = quote!(group = GROUP, subject = names::SUBJECT, ack = "at_least_once");
    let function = quote!(
        async fn tick() -> Result<(), HandlerError> {
            Ok(())
        }
    );
    insta::assert_snapshot!(pretty(handler(attribute, &function)));
}

#[test]
fn expands_every_key() {
    let attribute = quote!(
        group = "billing",
        subject = "order.created",
        ack = "at_least_once",
        commit = "on_persist",
        id = "json:/order/id",
        start = "new",
        timeout = "30s",
        max_attempts = "unlimited",
        backoff = "500ms..5m",
        concurrency = 8,
        stream = "ORDERS",
        ordered = false,
        crate = ::inbox_runtime,
    );
    let function = quote!(
        async fn f(tx: &mut SqliteConnection) -> Result<(), Error> {
            Ok(())
        }
    );
    insta::assert_snapshot!(pretty(handler(attribute, &function)));
}

#[test]
fn expands_a_transaction_in_the_last_position() {
    let attribute = quote!(
        group = "billing",
        subject = "order.created",
        id = "header:order-id",
        max_attempts = 3
    );
    let function = quote! {
        #[cfg(feature = "billing")]
        #[cfg_attr(unix, cfg(feature = "unix"), allow(unused))]
        #[tracing::instrument]
        async fn f(Json(order): Json<Order>, meta: Meta, tx: &mut SqliteConnection) -> Result<(), Error> {
            Ok(())
        }
    };
    insta::assert_snapshot!(pretty(handler(attribute, &function)));
}

#[test]
fn f87_with_another_path_the_runtime_is_not_named() {
    let attribute = quote!(
        group = "billing",
        subject = "order.created",
        id = "position",
        crate = my_facade::inbox,
        backoff = "5s"
    );
    let function = quote!(
        async fn f(tx: &mut my_facade::Connection, meta: my_facade::inbox::Meta) -> Result<(), Error> {
            Ok(())
        }
    );
    let expansion = pretty(handler(attribute, &function));
    assert!(!expansion.contains("inbox_runtime"), "{expansion}");
    insta::assert_snapshot!(expansion);
}

#[test]
fn f89_whatever_is_wrong_the_function_is_emitted() {
    let function = quote!(
        fn on_order(flag: &bool) {}
    );
    let expansion = pretty(handler(quote!(gruop = 5, subject), &function));
    assert!(expansion.contains("fn on_order(flag: &bool) {}"), "{expansion}");
    assert!(!expansion.contains("__inbox"), "{expansion}");
    assert_eq!(expansion.matches("compile_error!").count(), 4, "{expansion}");
}

/// What calls the function must not fail too, and an editor that completes in it needs it, also while it is being typed.
#[test]
fn f89_every_mistake_leaves_the_function_as_it_was() {
    let fine = quote!(group = "billing", subject = "order.created");
    let attributes = [
        quote!(),
        quote!(group),
        quote!(group =),
        quote!(group = "billing"),
        quote!(group = "billing" subject = "order.created"),
        quote!(group = "billing", group = "billing", subject = "order.created"),
        quote!("billing", "order.created"),
        quote!(#fine, ack = "exactly-once"),
        quote!(#fine, timeout = 5, backoff = "never", concurrency = 0),
        quote!(#fine, crate = "ib"),
        fine,
    ];
    let functions = [
        quote!(async fn f(tx: &mut C) -> Result<(), E> { tx. }),
        quote!(async fn f(tx: &mut C) -> Result<(), E> { let order = ; order.await? }),
        quote!(
            async fn f(&self) {}
        ),
        quote!(
            fn f() -> Result<(), E> {}
        ),
        quote!(
            async fn f<T>(tx: &mut C, value: T)
            where
                T: Send,
            {
            }
        ),
        quote!(
            unsafe extern "C" fn f(tx: C) {}
        ),
        quote!(
            async fn f(tx: &mut C, #[cfg(unix)] other: Meta) -> Result<(), E> {}
        ),
        quote!(
            async fn f(tx: &mut C, name: &str) -> impl Sized {}
        ),
        quote!(
            #[doc = "Kept."]
            #[deprecated]
            pub(crate) async fn r#match(a: A, b: &mut B, c: &mut C) -> ! {}
        ),
        quote!(
            struct NotAFunction;
        ),
        quote!(impl NotAFunction { async fn f() {} }),
    ];
    for attribute in &attributes {
        for function in &functions {
            let expansion = handler(attribute.clone(), function).to_string();
            let rest = expansion.strip_prefix(&function.to_string());
            let rest = rest.unwrap_or_else(|| panic!("#[inbox_handler({attribute})] {function}\nbecame\n{expansion}"));
            // Registered or refused, never both and never neither.
            assert_ne!(
                rest.contains("compile_error"),
                rest.contains("__inbox_decode"),
                "{attribute}: {expansion}"
            );
        }
    }
}
