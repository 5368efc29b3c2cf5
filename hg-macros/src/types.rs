//! Which types can travel, and in which form.
//!
//! | written    | caller passes | serde sees          | why                            |
//! |------------|---------------|---------------------|--------------------------------|
//! | `&str`     | `&str`        | `&str`              | borrowed from the message      |
//! | `&[u8]`    | `&[u8]`       | `&serde_bytes::Bytes` | borrowed; one copy           |
//! | `Vec<u8>`  | `Vec<u8>`     | `serde_bytes::ByteBuf` | one copy instead of a loop  |
//! | any other  | the same      | the same            |                                |

use proc_macro2::{TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::{
    Error, GenericArgument, PathArguments, PathSegment, Result, Type, spanned::Spanned as _,
};

/// How one value travels.
pub(crate) enum Shape {
    Str,
    Bytes,
    ByteVec(Type),
    Plain(Type),
}

impl Shape {
    /// The caller's type; `'a` is the message's lifetime.
    pub(crate) fn natural(&self) -> TokenStream {
        match self {
            Self::Str => quote!(&'a ::core::primitive::str),
            Self::Bytes => quote!(&'a [::core::primitive::u8]),
            Self::ByteVec(ty) | Self::Plain(ty) => ty.to_token_stream(),
        }
    }

    /// Says at the type itself when it cannot travel.
    pub(crate) fn check(&self, private: &TokenStream) -> TokenStream {
        match self {
            Self::Plain(ty) => {
                quote_spanned!(ty.span()=> const _: () = #private::travels::<#ty>();)
            }
            Self::Str | Self::Bytes | Self::ByteVec(_) => TokenStream::new(),
        }
    }

    /// Serde's type.
    pub(crate) fn wire(&self, private: &TokenStream) -> TokenStream {
        match self {
            Self::Bytes => quote!(&'a #private::serde_bytes::Bytes),
            Self::ByteVec(_) => quote!(#private::serde_bytes::ByteBuf),
            Self::Str | Self::Plain(_) => self.natural(),
        }
    }

    /// The natural value to the wire's.
    pub(crate) fn pack(&self, value: &impl ToTokens, private: &TokenStream) -> TokenStream {
        match self {
            Self::Bytes => quote!(#private::serde_bytes::Bytes::new(#value)),
            Self::ByteVec(_) => quote!(#private::serde_bytes::ByteBuf::from(#value)),
            Self::Str | Self::Plain(_) => value.to_token_stream(),
        }
    }

    /// The wire's value to the natural one.
    pub(crate) fn unpack(&self, value: &impl ToTokens, private: &TokenStream) -> TokenStream {
        match self {
            Self::Bytes => quote!(&**#value),
            Self::ByteVec(_) => quote!(#private::serde_bytes::ByteBuf::into_vec(#value)),
            Self::Str | Self::Plain(_) => value.to_token_stream(),
        }
    }

    pub(crate) fn is_borrowed(&self) -> bool {
        matches!(self, Self::Str | Self::Bytes)
    }
}

/// The shape of an argument, or why it cannot be one.
pub(crate) fn argument(ty: &Type) -> Result<Shape> {
    match ty {
        Type::Reference(reference) => return borrowed(reference),
        // What a `macro_rules!` variable `$t:ty` becomes.
        Type::Group(group) => return argument(&group.elem),
        _ => {}
    }
    refuse_inside(ty, "borrowed data travels only as a whole argument, `&str` or `&[u8]`")?;
    Ok(owned(ty))
}

/// The shape of a result, or why it cannot be one.
pub(crate) fn output(ty: &Type) -> Result<Shape> {
    refuse_inside(ty, "an RPC returns owned values: what is borrowed here cannot go elsewhere")?;
    Ok(owned(ty))
}

fn owned(ty: &Type) -> Shape {
    match arguments_of(ty, "Vec").as_deref() {
        Some([item]) if is_named(item, "u8") => Shape::ByteVec(ty.clone()),
        _ => Shape::Plain(ty.clone()),
    }
}

fn borrowed(reference: &syn::TypeReference) -> Result<Shape> {
    let target = &*reference.elem;
    if reference.mutability.is_some() {
        return Err(Error::new_spanned(
            reference,
            "nothing travels by `&mut`: a change made here is not seen by the caller; return it",
        ));
    }
    let shape = match target {
        Type::Slice(slice) if is_named(&slice.elem, "u8") => Shape::Bytes,
        _ if is_named(target, "str") => Shape::Str,
        _ => return Err(Error::new_spanned(reference, instead_of_reference(target))),
    };
    match &reference.lifetime {
        None => Ok(shape),
        Some(lifetime) => Err(Error::new_spanned(
            lifetime,
            "the argument borrows from the received message, which lives as long as the call: \
             leave the lifetime out",
        )),
    }
}

fn instead_of_reference(target: &Type) -> String {
    let is_byte = |ty: &&Type| is_named(ty, "u8");
    let vec_of = arguments_of(target, "Vec").unwrap_or_default();
    let advice = if is_named(target, "String") {
        "&str".to_owned()
    } else if vec_of.first().is_some_and(is_byte) {
        "&[u8]".to_owned()
    } else if is_named(target, "Path") {
        "PathBuf".to_owned()
    } else if let Type::Slice(slice) = target {
        format!("Vec<{}>", spelled(&slice.elem))
    } else {
        spelled(target)
    };
    format!("only `&str` and `&[u8]` are borrowed from a message: take `{advice}`")
}

/// Refuses references, lifetimes and `impl Trait` anywhere in a type.
fn refuse_inside(ty: &Type, about_borrowing: &str) -> Result<()> {
    let is_impl = |token: &TokenTree| matches!(token, TokenTree::Ident(word) if word == "impl");
    if let Some(word) = find_token(ty.to_token_stream(), &is_impl) {
        return Err(Error::new_spanned(
            word,
            "both sides must know the type that travels: name it instead of `impl Trait`",
        ));
    }
    let borrows = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if matches!(mark.as_char(), '&' | '\''));
    match find_token(ty.to_token_stream(), &borrows) {
        Some(mark) => Err(Error::new_spanned(mark, about_borrowing)),
        None => Ok(()),
    }
}

/// The first token in `tokens`, at any depth, for which `wanted` holds.
fn find_token(tokens: TokenStream, wanted: &dyn Fn(&TokenTree) -> bool) -> Option<TokenTree> {
    tokens.into_iter().find_map(|token| match &token {
        TokenTree::Group(group) => find_token(group.stream(), wanted),
        _ if wanted(&token) => Some(token),
        _ => None,
    })
}

/// Whether this is `&Request`, the request's context.
pub(crate) fn is_request(ty: &Type) -> bool {
    match ty {
        Type::Reference(reference) => {
            reference.mutability.is_none()
                && reference.lifetime.is_none()
                && is_named(&reference.elem, "Request")
        }
        Type::Group(group) => is_request(&group.elem),
        _ => false,
    }
}

/// Whether this is `hg::Request` by value. A plain `Request` may be a type of the user's own.
pub(crate) fn is_owned_request(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    let mut names = path.path.segments.iter().map(|segment| &segment.ident);
    path.qself.is_none()
        && names.next().is_some_and(|first| first == "hg")
        && names.next().is_some_and(|second| second == "Request")
        && names.next().is_none()
}

/// The type arguments of a type called `Result`; `None` when it is called otherwise.
pub(crate) fn result_arguments(ty: &Type) -> Option<Vec<&Type>> {
    arguments_of(ty, "Result")
}

/// The arguments of a path that ends in `name`, if all of them are types.
fn arguments_of<'t>(ty: &'t Type, name: &str) -> Option<Vec<&'t Type>> {
    let last = last_segment(ty).filter(|last| last.ident == name)?;
    Some(match &last.arguments {
        PathArguments::AngleBracketed(list) => list
            .args
            .iter()
            .map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            })
            .collect::<Option<_>>()?,
        PathArguments::None | PathArguments::Parenthesized(_) => Vec::new(),
    })
}

fn last_segment(ty: &Type) -> Option<&PathSegment> {
    match ty {
        Type::Path(path) if path.qself.is_none() => path.path.segments.last(),
        Type::Group(group) => last_segment(&group.elem),
        Type::Paren(paren) => last_segment(&paren.elem),
        _ => None,
    }
}

fn is_named(ty: &Type, name: &str) -> bool {
    matches!(last_segment(ty), Some(last) if last.ident == name && last.arguments.is_none())
}

/// A type as a person would write it, for a message.
fn spelled(ty: &Type) -> String {
    let spaced = ty.to_token_stream().to_string();
    spaced.replace(" :: ", "::").replace(" < ", "<").replace(" >", ">").replace(" ,", ",")
}
