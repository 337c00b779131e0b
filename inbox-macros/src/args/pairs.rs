//! Splits the attribute into `key = value` pairs, and goes on behind what it can't read.

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use syn::{
    Expr,
    ext::IdentExt,
    parse::{ParseStream, Parser},
};

use super::suggest::KEYS;
use crate::errors::Errors;

/// One `key = value`.
pub(crate) struct Pair {
    pub(crate) key: Ident,
    pub(crate) value: Expr,
}

/// The pairs of an attribute.
#[derive(Default)]
pub(crate) struct Pairs {
    pub(crate) pairs: Vec<Pair>,
    /// Whether something was left out, so that nothing can be said about what is missing.
    pub(crate) incomplete: bool,
}

/// Reads the pairs. Of several parts that aren't pairs only the first is reported: the others usually follow from it.
pub(crate) fn parse(tokens: TokenStream, errors: &mut Errors) -> Pairs {
    let mut pairs = Pairs::default();
    for part in split(tokens) {
        match Parser::parse2(pair, part.tokens) {
            Ok(pair) => pairs.pairs.push(pair),
            Err(error) if !pairs.incomplete => {
                pairs.incomplete = true;
                errors.push(part.comma.map_or(error, |comma| syn::Error::new(comma, NO_PAIR)));
            }
            Err(_) => {}
        }
    }
    pairs
}

const NO_PAIR: &str = "expected `key = value`, as in `group = \"billing\", subject = \"order.created\"`";

struct Part {
    tokens: TokenStream,
    /// The comma behind a part that has no tokens to point at.
    comma: Option<Span>,
}

fn split(tokens: TokenStream) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut part = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ',' => {
                let comma = part.is_empty().then(|| punct.span());
                let tokens = part.drain(..).collect();
                parts.push(Part { tokens, comma });
            }
            token => part.push(token),
        }
    }
    if !part.is_empty() {
        let tokens = part.into_iter().collect();
        parts.push(Part { tokens, comma: None });
    }
    parts
}

fn pair(input: ParseStream<'_>) -> syn::Result<Pair> {
    let key = input
        .call(Ident::parse_any)
        .map_err(|error| syn::Error::new(error.span(), NO_PAIR))?;
    if !input.peek(syn::Token![=]) {
        return Err(syn::Error::new(key.span(), needs_value(&key)));
    }
    input.parse::<syn::Token![=]>()?;
    if input.is_empty() {
        return Err(syn::Error::new(key.span(), needs_value(&key)));
    }
    let value = input.parse()?;
    if input.is_empty() {
        Ok(Pair { key, value })
    } else {
        Err(input.error("expected `,` between two keys"))
    }
}

fn needs_value(key: &Ident) -> String {
    match KEYS.iter().find(|known| key == known.name) {
        Some(known) => format!("`{key}` needs a value, as in `{}`", known.example),
        None => NO_PAIR.to_owned(),
    }
}
