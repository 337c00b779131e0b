//! Reads the function: from its signature to a handler that is checked. The body is left as tokens, so that one that is
//! half typed hides no error.

use proc_macro2::{Ident, TokenStream, TokenTree};
use quote::quote;
use syn::{
    Attribute, FnArg, Generics, Meta, PatType, ReturnType, Safety, Signature, Type, TypeReference, Visibility,
    parse::{Parse, ParseStream},
    punctuated::Punctuated,
    token,
};

use crate::{
    errors::Errors,
    types::{self, Oddity},
};

/// A function that can be a handler.
pub(crate) struct Handler {
    /// The `#[cfg]` attributes below ours.
    pub(crate) cfgs: Vec<TokenStream>,
    pub(crate) ident: Ident,
    pub(crate) inputs: Vec<Input>,
    pub(crate) output: Type,
}

/// An argument, in its place.
pub(crate) enum Input {
    /// The type behind the one `&mut`.
    Transaction(Type),
    /// A type that is made from the delivery.
    Extracted(Type),
}

impl Handler {
    pub(crate) fn has_transaction(&self) -> bool {
        self.inputs.iter().any(|input| matches!(input, Input::Transaction(_)))
    }
}

/// Reads an annotated item.
pub(crate) fn parse(item: TokenStream) -> syn::Result<Handler> {
    let Function { attrs, signature } = syn::parse2(item)?;
    let mut errors = Errors::default();
    errors.take(check_once(&attrs));
    errors.take(check_qualifiers(&signature));
    errors.take(check_generics(&signature.generics));
    let generic = !signature.generics.params.is_empty();
    let inputs = check_inputs(&signature, generic, &mut errors);
    let output = errors.take(check_output(&signature));
    let output = errors.finish(output.flatten())?;
    Ok(Handler {
        cfgs: attrs.iter().flat_map(cfgs).collect(),
        ident: signature.ident,
        inputs,
        output,
    })
}

/// A function without its body.
struct Function {
    attrs: Vec<Attribute>,
    signature: Signature,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        input.parse::<Visibility>()?;
        if !is_function(input) {
            return Err(input.error("`#[inbox_handler]` goes on an `async fn`"));
        }
        let signature: Signature = input.parse()?;
        if !input.peek(token::Brace) {
            let message = "an inbox handler is a free function with a body, not one that a trait declares";
            return Err(syn::Error::new(signature.ident.span(), message));
        }
        input.parse::<TokenStream>()?;
        Ok(Self { attrs, signature })
    }
}

/// Looks for `fn` behind words and literals, as in `pub const unsafe extern "C" fn`.
fn is_function(input: ParseStream<'_>) -> bool {
    let mut cursor = input.cursor();
    while let Some((token, next)) = cursor.token_tree() {
        match token {
            TokenTree::Ident(word) if word == "fn" => return true,
            TokenTree::Ident(_) | TokenTree::Literal(_) => cursor = next,
            TokenTree::Group(_) | TokenTree::Punct(_) => return false,
        }
    }
    false
}

fn check_once(attrs: &[Attribute]) -> syn::Result<()> {
    let second = attrs.iter().find(|attr| {
        attr.path()
            .segments
            .last()
            .is_some_and(|last| last.ident == "inbox_handler")
    });
    match second {
        Some(second) => Err(syn::Error::new_spanned(
            second,
            "a function is one handler: remove one `#[inbox_handler]`, or call this function from a second one",
        )),
        None => Ok(()),
    }
}

/// Refuses every kind of function but a plain `async fn`, for one reason: those after the first follow from it.
fn check_qualifiers(signature: &Signature) -> syn::Result<()> {
    let (span, message) = match (&signature.safety, &signature.abi, &signature.constness) {
        (Safety::Unsafe(token), ..) => (
            token.span,
            "the runtime calls handlers from safe code; write `async fn`",
        ),
        (_, Some(abi), _) => (
            abi.extern_token.span,
            "an inbox handler is never called from C; write `async fn`",
        ),
        // rustc refuses `const async fn` itself.
        _ if signature.asyncness.is_some() => return Ok(()),
        (.., Some(token)) => (token.span, "an inbox handler is not `const`; write `async fn`"),
        (.., None) => (signature.fn_token.span, "an inbox handler is async; write `async fn`"),
    };
    Err(syn::Error::new(span, message))
}

fn check_generics(generics: &Generics) -> syn::Result<()> {
    if generics.params.is_empty() {
        return match &generics.where_clause {
            Some(clause) => Err(syn::Error::new(
                clause.where_token.span,
                "an inbox handler is not generic; remove the `where` clause",
            )),
            None => Ok(()),
        };
    }
    let lifetimes = generics.params.len() == generics.lifetimes().count();
    let message = if lifetimes {
        "an inbox handler names no lifetimes: its arguments own their data, and the transaction is `&mut SqliteConnection`"
    } else {
        "an inbox handler is not generic, since it is registered once; write the types that it handles"
    };
    Err(syn::Error::new_spanned(&generics.params, message))
}

fn check_inputs(signature: &Signature, generic: bool, errors: &mut Errors) -> Vec<Input> {
    let mut inputs = Vec::new();
    let mut transaction = false;
    for argument in &signature.inputs {
        let input = match argument {
            FnArg::Receiver(receiver) => Err(syn::Error::new_spanned(
                receiver,
                "an inbox handler is a free function; take shared values as `State<S>`",
            )),
            FnArg::Typed(argument) => check_input(argument, generic, &mut transaction),
        };
        inputs.extend(errors.take(input));
    }
    inputs
}

fn check_input(argument: &PatType, generic: bool, transaction: &mut bool) -> syn::Result<Input> {
    if let Some(conditional) = argument.attrs.iter().find(|attr| !cfgs(attr).is_empty()) {
        let message = "an argument can't be conditional; put `#[cfg]` on two versions of the function";
        return Err(syn::Error::new_spanned(conditional, message));
    }
    let refuse = |message: &str| Err(syn::Error::new_spanned(&argument.ty, message));
    match types::as_reference(&argument.ty) {
        Some(reference) if reference.mutability.is_some() => {
            if std::mem::replace(transaction, true) {
                return refuse("a handler has one transaction; this is a second `&mut` argument");
            }
            check_transaction(reference, generic).map(Input::Transaction)
        }
        Some(reference) => {
            // A connection was meant as the transaction, which then isn't missing as well.
            *transaction |= is_connection(&reference.elem);
            match types::last_segment(&reference.elem) {
                Some(name) if is_connection(&reference.elem) => {
                    refuse(&format!("the transaction is taken as `&mut {name}`"))
                }
                _ => refuse("an argument owns its data: take it without `&`, a shared value as `State<S>`"),
            }
        }
        None => {
            match types::last_segment(&argument.ty) {
                Some(name) if name == "SqliteConnection" || name == "PgConnection" => {
                    return refuse(&format!("the transaction is borrowed: take `&mut {name}`"));
                }
                Some(name) if name == "Transaction" => return refuse(NO_TRANSACTION),
                _ => {}
            }
            check_plain(
                &argument.ty,
                generic,
                "an argument owns its data: write a type without borrows, as `String` for `&str`",
            )?;
            Ok(Input::Extracted((*argument.ty).clone()))
        }
    }
}

const NO_TRANSACTION: &str =
    "a handler takes the connection on which its transaction is open: `&mut SqliteConnection` or `&mut PgConnection`";

fn is_connection(ty: &Type) -> bool {
    types::last_segment(ty).is_some_and(|name| name.to_string().ends_with("Connection"))
}

fn check_transaction(reference: &TypeReference, generic: bool) -> syn::Result<Type> {
    let connection = &*reference.elem;
    if reference
        .lifetime
        .as_ref()
        .is_some_and(|lifetime| lifetime.ident == "static")
    {
        let message = "the transaction lives as long as one call of the handler; write `&mut` without a lifetime";
        return Err(syn::Error::new_spanned(&reference.lifetime, message));
    }
    let named = match types::ungroup(connection) {
        Type::TraitObject(_) | Type::Slice(_) | Type::Never(_) | Type::Infer(_) => false,
        _ => types::last_segment(connection).is_none_or(|name| name != "Transaction"),
    };
    if !named {
        return Err(syn::Error::new_spanned(connection, NO_TRANSACTION));
    }
    check_plain(connection, generic, NO_TRANSACTION)?;
    Ok(connection.clone())
}

/// Refuses a type that a registration can't write down.
fn check_plain(ty: &Type, generic: bool, borrowed: &str) -> syn::Result<()> {
    let message = match types::oddity(ty) {
        Some(Oddity::ImplTrait) => {
            "an inbox handler is not generic, since it is registered once; write the type itself"
        }
        Some(Oddity::SelfType) => "an inbox handler is a free function without `Self`; write the type's name",
        // A function with parameters of its own was refused already.
        Some(Oddity::Borrowed) if !generic => borrowed,
        Some(Oddity::Borrowed) | None => return Ok(()),
    };
    Err(syn::Error::new_spanned(ty, message))
}

/// The return type. `None` for a function that isn't async, which was refused already.
fn check_output(signature: &Signature) -> syn::Result<Option<Type>> {
    if signature.asyncness.is_none() {
        return Ok(None);
    }
    let message = "an inbox handler returns a `Result`; write `-> Result<(), HandlerError>`, or `Result<Handled, E>`";
    match &signature.output {
        ReturnType::Default => Err(syn::Error::new(signature.ident.span(), message)),
        ReturnType::Type(_, ty) => match types::ungroup(ty) {
            Type::Never(_) | Type::ImplTrait(_) => Err(syn::Error::new_spanned(ty, message)),
            _ => Ok(Some((**ty).clone())),
        },
    }
}

/// The `#[cfg]`s of an attribute: itself, or those that a `#[cfg_attr]` adds.
fn cfgs(attr: &Attribute) -> Vec<TokenStream> {
    if attr.path().is_ident("cfg") {
        return vec![quote!(#attr)];
    }
    let Meta::List(list) = &attr.meta else {
        return Vec::new();
    };
    if !list.path.is_ident("cfg_attr") {
        return Vec::new();
    }
    let Ok(metas) = list.parse_args_with(Punctuated::<Meta, token::Comma>::parse_terminated) else {
        return Vec::new();
    };
    let mut metas = metas.into_iter();
    let Some(condition) = metas.next() else {
        return Vec::new();
    };
    let added = metas.filter(|meta| meta.path().is_ident("cfg"));
    added.map(|cfg| quote!(#[cfg_attr(#condition, #cfg)])).collect()
}
