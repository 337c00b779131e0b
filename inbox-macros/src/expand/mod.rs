//! Writes the registration of a handler. Takes only what is checked, and can't fail.
//!
//! It names nothing but `__inbox`, the runtime's hidden module, and what begins with `__inbox`; so nothing that is in
//! scope around the handler, not even a missing prelude, changes what it means.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{Type, ext::IdentExt, spanned::Spanned};

use crate::{
    args::{Ack, Args, Attempts, Id, Start, Text},
    model::{Handler, Input},
};

#[cfg(test)]
mod tests;

/// Errors show at `span`, yet rustc and clippy still know that the tokens come from a macro.
fn at(span: Span) -> Span {
    Span::call_site().located_at(span)
}

/// Writes the registration. For `async fn f(tx: &mut C, a: A) -> R` it expands to:
///
/// ```text
/// const _: () = {
///     use ::inbox_runtime::__private as __inbox;
///     const __INBOX_ARG1: __inbox::Arg<A> = __inbox::arg::<A>();
///     fn __inbox_decode(…) -> … { … |__inbox_tx| f(__inbox_tx, __inbox_arg1) … }
///     __inbox::submit! { __inbox::Registration::new(…, __inbox::Decode::one(__inbox_decode), &[__INBOX_ARG1.check]) }
/// };
/// ```
pub(crate) fn expand(args: &Args, handler: &Handler) -> TokenStream {
    let runtime = match &args.runtime {
        Some(path) => quote_spanned!(at(path.span())=> #path::__private),
        None => quote!(::inbox_runtime::__private),
    };
    let cfgs = &handler.cfgs;
    let arguments = handler
        .inputs
        .iter()
        .enumerate()
        .filter_map(|(index, input)| argument(index, input, transaction(handler).is_some()));
    let decode = decode(handler);
    let meta = meta(args, handler);
    let checks = extracted(handler).map(constant);
    // What tells the store stands at the connection's type, so that a wrong one is reported there and once.
    let registration = quote_spanned! {at(store_span(handler))=>
        __inbox::Registration::new(#meta, __inbox::Decode::one(__inbox_decode), &[#(#checks.check),*])
    };
    // An `impl` block refuses a const without a name, which is reported at the function's name.
    let unnamed = quote_spanned!(at(handler.ident.span())=> _);
    // The function may be deprecated; calling it here is no use of it.
    quote! {
        #(#cfgs)*
        #[allow(deprecated)]
        const #unnamed: () = {
            use #runtime as __inbox;
            #(#arguments)*
            #decode
            __inbox::submit! { #registration }
        };
    }
}

fn transaction(handler: &Handler) -> Option<&Type> {
    handler.inputs.iter().find_map(|input| match input {
        Input::Transaction(ty) => Some(ty),
        Input::Extracted(_) => None,
    })
}

fn store_span(handler: &Handler) -> Span {
    transaction(handler).map_or_else(Span::call_site, Spanned::span)
}

/// The indices of the arguments that are made from the delivery.
fn extracted(handler: &Handler) -> impl Iterator<Item = usize> {
    let inputs = handler.inputs.iter().enumerate();
    inputs
        .filter(|(_, input)| matches!(input, Input::Extracted(_)))
        .map(|(index, _)| index)
}

fn constant(index: usize) -> proc_macro2::Ident {
    format_ident!("__INBOX_ARG{index}")
}

fn variable(index: usize) -> proc_macro2::Ident {
    format_ident!("__inbox_arg{index}")
}

/// The two functions of one argument's type, in the one call that carries its bound: a wrong type is one error.
fn argument(index: usize, input: &Input, in_transaction: bool) -> Option<TokenStream> {
    let Input::Extracted(ty) = input else {
        return None;
    };
    let name = constant(index);
    let arg = if in_transaction {
        quote!(arg)
    } else {
        quote!(arg_without_tx)
    };
    Some(quote_spanned!(at(ty.span())=> const #name: __inbox::Arg<#ty> = __inbox::#arg::<#ty>();))
}

/// The function that makes the arguments and leaves only the transaction open.
fn decode(handler: &Handler) -> TokenStream {
    let (store, parameter) = match transaction(handler) {
        Some(ty) => (
            quote_spanned!(at(ty.span())=> __inbox::StoreOf<#ty>),
            quote!(__inbox_tx),
        ),
        None => (quote!(__inbox::Detached), quote!(_)),
    };
    let lets = extracted(handler).map(|index| {
        let (variable, constant) = (variable(index), constant(index));
        quote!(let #variable = (#constant.decode)(__inbox_context)?;)
    });
    let context = if extracted(handler).next().is_some() {
        quote!(__inbox_context)
    } else {
        quote!(_)
    };
    let call = call(handler);
    quote_spanned! {at(store_span(handler))=>
        fn __inbox_decode(
            #context: &__inbox::DeliveryContext<'_>,
        ) -> __inbox::Result<__inbox::Invocation<#store>, __inbox::Rejection> {
            #(#lets)*
            __inbox::Result::Ok(__inbox::Invocation::new(move |#parameter| #call))
        }
    }
}

/// The call of the handler. That its future is `Send` is reported at the function's name, what it returns at the return
/// type.
fn call(handler: &Handler) -> TokenStream {
    let ident = &handler.ident;
    let inputs = handler.inputs.iter().enumerate().map(|(index, input)| match input {
        Input::Transaction(_) => format_ident!("__inbox_tx"),
        Input::Extracted(_) => variable(index),
    });
    let future = quote_spanned!(at(ident.span())=> #ident(#(#inputs),*));
    let output = &handler.output;
    let outcome = quote_spanned!(at(output.span())=> __inbox::outcome::<#output>());
    quote_spanned!(at(ident.span())=> __inbox::run(#future, #outcome))
}

/// What the attribute says, as a constant expression that names only what was stated.
fn meta(args: &Args, handler: &Handler) -> TokenStream {
    let name = format!("::{}", handler.ident.unraw());
    let (group, subject) = (text(&args.group), text(&args.subject));
    let setters = [
        ack(args.ack),
        args.id.as_ref().map(id),
        args.start.map(|start| match start {
            Start::First => quote!(.start(__inbox::StartPosition::First)),
            Start::New => quote!(.start(__inbox::StartPosition::New)),
            Start::Time(millis) => quote!(.start(__inbox::StartPosition::Time(#millis))),
            Start::Sequence(sequence) => quote!(.start(__inbox::StartPosition::Sequence(#sequence))),
        }),
        args.timeout.map(|millis| quote!(.timeout_millis(#millis))),
        args.max_attempts.map(|limit| match limit {
            Attempts::Limit(limit) => quote!(.max_attempts(__inbox::Option::Some(#limit))),
            Attempts::Unlimited => quote!(.max_attempts(__inbox::Option::None)),
        }),
        args.backoff.map(|(first, max)| quote!(.backoff_millis(#first, #max))),
        args.concurrency.map(|workers| quote!(.concurrency(#workers))),
        args.stream.as_ref().map(|stream| quote!(.stream(#stream))),
        args.ordered.map(|ordered| quote!(.ordered(#ordered))),
    ];
    let setters = setters.iter().flatten();
    quote! {
        __inbox::HandlerMeta::new(__inbox::concat!(__inbox::module_path!(), #name), #group, #subject) #(#setters)*
    }
}

fn text(text: &Text) -> TokenStream {
    match text {
        Text::Literal(literal) => quote!(#literal),
        Text::Const(path) => quote!(#path),
    }
}

fn ack(ack: Ack) -> Option<TokenStream> {
    match ack {
        Ack::ExactlyOnce => None,
        Ack::AtLeastOnce => Some(quote!(.ack(__inbox::AckStrategy::AtLeastOnce))),
        Ack::OnPersist => Some(quote!(.ack(__inbox::AckStrategy::OnPersist))),
        Ack::AtMostOnce => Some(quote!(.ack(__inbox::AckStrategy::AtMostOnce))),
    }
}

fn id(id: &Id) -> TokenStream {
    match id {
        Id::Header(name) => quote!(.id(__inbox::IdSource::Header(#name))),
        Id::Json(pointer) => quote!(.id(__inbox::IdSource::Json(#pointer))),
        Id::Position => quote!(.id(__inbox::IdSource::Position)),
    }
}
