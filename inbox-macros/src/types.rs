//! What the types of a signature tell without being resolved.

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Type, TypeReference};

/// Takes off parentheses, and the invisible groups in which `macro_rules!` wraps its fragments.
pub(crate) fn ungroup(mut ty: &Type) -> &Type {
    loop {
        ty = match ty {
            Type::Group(group) => &group.elem,
            Type::Paren(paren) => &paren.elem,
            ty => return ty,
        }
    }
}

/// The borrow that a type is, if it is one.
pub(crate) fn as_reference(ty: &Type) -> Option<&TypeReference> {
    match ungroup(ty) {
        Type::Reference(reference) => Some(reference),
        _ => None,
    }
}

/// The last segment of a path, as in `PgConnection`.
pub(crate) fn last_segment(ty: &Type) -> Option<&Ident> {
    match ungroup(ty) {
        Type::Path(path) => path.path.segments.last().map(|segment| &segment.ident),
        _ => None,
    }
}

/// What a type says that the type of an argument can't.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Oddity {
    /// It names no type: `impl Trait`.
    ImplTrait,
    /// It is the `Self` of an impl block.
    SelfType,
    /// It borrows: `'_`, or a `&` without a lifetime.
    Borrowed,
}

/// Looks through the tokens of a type. The arguments of `fn(&str)` and `Fn(&str)` are left out: their lifetimes are bound
/// there, and nothing is borrowed.
pub(crate) fn oddity(ty: &Type) -> Option<Oddity> {
    find(ty.to_token_stream())
}

fn find(tokens: TokenStream) -> Option<Oddity> {
    let mut tokens = tokens.into_iter().peekable();
    let mut after_name = false;
    while let Some(token) = tokens.next() {
        let found = match &token {
            TokenTree::Ident(ident) if ident == "impl" => Some(Oddity::ImplTrait),
            TokenTree::Ident(ident) if ident == "Self" => Some(Oddity::SelfType),
            TokenTree::Group(group) if !(after_name && group.delimiter() == Delimiter::Parenthesis) => {
                find(group.stream())
            }
            TokenTree::Punct(punct) => match (punct.as_char(), tokens.peek()) {
                ('\'', Some(TokenTree::Ident(lifetime))) => (lifetime == "_").then_some(Oddity::Borrowed),
                ('&', Some(TokenTree::Punct(next))) => (next.as_char() != '\'').then_some(Oddity::Borrowed),
                ('&', _) => Some(Oddity::Borrowed),
                // What a function returns may be borrowed from its arguments.
                ('-', _) => return None,
                _ => None,
            },
            _ => None,
        };
        if found.is_some() {
            return found;
        }
        after_name = matches!(token, TokenTree::Ident(_));
    }
    None
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn f89_borrowed_data_is_told_from_borrowing_functions() {
        assert_eq!(oddity(&parse_quote!(Json<&str>)), Some(Oddity::Borrowed));
        assert_eq!(oddity(&parse_quote!(Json<(u8, &str)>)), Some(Oddity::Borrowed));
        assert_eq!(oddity(&parse_quote!(Json<Order<'_>>)), Some(Oddity::Borrowed));
        assert_eq!(oddity(&parse_quote!(Option<&mut Conn>)), Some(Oddity::Borrowed));
        assert_eq!(oddity(&parse_quote!(State<impl Clone>)), Some(Oddity::ImplTrait));
        assert_eq!(oddity(&parse_quote!(Json<Self>)), Some(Oddity::SelfType));
        assert_eq!(oddity(&parse_quote!(Json<&'static str>)), None);
        assert_eq!(oddity(&parse_quote!(State<fn(&str) -> &str>)), None);
        assert_eq!(
            oddity(&parse_quote!(State<Arc<dyn Fn(&str) -> bool + Send + Sync>>)),
            None
        );
        assert_eq!(oddity(&parse_quote!(State<(u8, [u8; 2])>)), None);
    }
}
