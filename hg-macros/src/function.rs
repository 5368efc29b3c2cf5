//! The function under the attribute: with a body, or declared with a `;`.

use proc_macro2::{Group, Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{
    Attribute, Error, FnArg, Ident, Pat, Result, ReturnType, Signature, Token, Type, Visibility,
    parse::{Parse, ParseStream},
};

use crate::types::{self, Shape};

/// Arguments of one RPC: serde implements its traits for tuples up to this size.
const ARGUMENTS_MAX: usize = 16;

/// A function that can be an RPC.
pub(crate) struct Function {
    pub(crate) attributes: Vec<Attribute>,
    pub(crate) visibility: Visibility,
    pub(crate) signature: Signature,
    /// `None`: a declaration.
    pub(crate) body: Option<Group>,
    /// The type of the first argument when it is the request's context, `&Request`.
    pub(crate) context: Option<Type>,
    /// The arguments that travel.
    pub(crate) arguments: Vec<Shape>,
    pub(crate) returns: Returns,
}

/// What travels back.
pub(crate) struct Returns {
    pub(crate) output: Shape,
    /// The `E` of `Result<T, E>`.
    pub(crate) error: Option<Type>,
}

impl Parse for Function {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let visibility = input.parse()?;
        if !starts_a_function(input) {
            return Err(input.error("`#[hg::rpc]` goes on a function, with a body or with a `;`"));
        }
        let signature: Signature = input.parse()?;
        let body = if input.peek(Token![;]) {
            input.parse::<Token![;]>()?;
            None
        } else {
            Some(input.parse::<Group>()?)
        };
        let mut problems = Problems::default();
        check_head(&signature, body.is_some(), &mut problems);
        let (context, arguments) = inputs(&signature, body.is_some(), &mut problems);
        let returns = problems.keep(returns(&signature.output));
        if let Some(error) = problems.0 {
            return Err(error);
        }
        let returns = returns.expect("a missing part left a problem");
        Ok(Self { attributes, visibility, signature, body, context, arguments, returns })
    }
}

/// All that is wrong, so that one compilation tells everything.
#[derive(Default)]
struct Problems(Option<Error>);

impl Problems {
    fn add(&mut self, at: impl ToTokens, what: &str) {
        self.push(Error::new_spanned(at, what));
    }

    fn push(&mut self, error: Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            None => self.0 = Some(error),
        }
    }

    fn keep<T>(&mut self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }
}

fn starts_a_function(input: ParseStream<'_>) -> bool {
    input.peek(Token![fn])
        || input.peek(Token![async])
        || input.peek(Token![unsafe])
        || input.peek(Token![extern])
        || (input.peek(Token![const]) && (input.peek2(Token![fn]) || !input.peek2(syn::Ident)))
}

/// Everything in front of the arguments.
fn check_head(signature: &Signature, has_body: bool, problems: &mut Problems) {
    let generics = &signature.generics;
    if !generics.params.is_empty() {
        problems.add(
            &generics.params,
            "an RPC cannot be generic: its name stands for one function with one set of types",
        );
    }
    if let Some(clause) = &generics.where_clause {
        problems.add(clause, "an RPC cannot be generic: there is nothing to constrain");
    }
    if let Some(word) = &signature.unsafety {
        problems.add(word, "an RPC cannot be unsafe: no caller elsewhere can promise anything");
    }
    if let Some(word) = &signature.constness {
        problems.add(word, "an RPC runs in another process, never at compile time: not `const`");
    }
    if let Some(abi) = &signature.abi {
        problems.add(abi, "an RPC is called by Hydrargyrum, never by C: not `extern`");
    }
    if let Some(dots) = &signature.variadic {
        problems.add(dots, "an RPC has a fixed list of arguments");
    }
    if let (Some(word), false) = (&signature.asyncness, has_body) {
        problems.add(
            word,
            "a declaration says what travels; `async` belongs to the function that implements it",
        );
    }
}

fn inputs(
    signature: &Signature,
    has_body: bool,
    problems: &mut Problems,
) -> (Option<Type>, Vec<Shape>) {
    let mut context = None;
    let mut arguments = Vec::new();
    for (position, input) in signature.inputs.iter().enumerate() {
        let typed = match input {
            FnArg::Typed(typed) => typed,
            FnArg::Receiver(receiver) => {
                problems.add(receiver, "an RPC is a free function: no `self`");
                continue;
            }
        };
        check_name(&typed.pat, problems);
        if let Some(attribute) = typed.attrs.first() {
            problems.add(attribute, "attributes on an RPC's argument have no meaning");
        }
        if types::is_request(&typed.ty) {
            match (position, has_body) {
                (0, true) => context = Some((*typed.ty).clone()),
                (0, false) => problems.add(
                    &typed.ty,
                    "a declaration lists what travels; `&Request` belongs to the function that \
                     implements it",
                ),
                _ => problems.add(&typed.ty, "the request is the first argument"),
            }
        } else if types::is_owned_request(&typed.ty) {
            problems.add(&typed.ty, "a handler is lent its request: take `&hg::Request`");
        } else if let Some(shape) = problems.keep(types::argument(&typed.ty)) {
            arguments.push(shape);
        }
    }
    if arguments.len() > ARGUMENTS_MAX {
        problems.add(
            &signature.inputs,
            "an RPC has at most 16 arguments: put some of them into a struct",
        );
    }
    (context, arguments)
}

fn check_name(pattern: &Pat, problems: &mut Problems) {
    let plain =
        matches!(pattern, Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none());
    if !plain {
        problems.add(
            pattern,
            "an RPC's argument is a name and a type: take the pattern apart in the body",
        );
    }
}

fn returns(output: &ReturnType) -> Result<Returns> {
    let ReturnType::Type(_, ty) = output else {
        return Ok(Returns { output: Shape::Plain(syn::parse_quote!(())), error: None });
    };
    let Some(arguments) = types::result_arguments(ty) else {
        return Ok(Returns { output: types::output(ty)?, error: None });
    };
    match arguments.as_slice() {
        [output, error] => {
            types::output(error)?;
            Ok(Returns { output: types::output(output)?, error: Some((*error).clone()) })
        }
        _ => Err(Error::new_spanned(
            ty,
            "spell the error's type: `Result<T, E>`; it travels, so it is serde-serialisable",
        )),
    }
}

impl Function {
    /// The function's name without `r#`.
    pub(crate) fn bare_name(&self) -> String {
        syn::ext::IdentExt::unraw(&self.signature.ident).to_string()
    }

    /// The name of the function that holds the body. Not the RPC's own: in the body that name is
    /// the RPC, so that a handler can call its own RPC elsewhere. Nor one that a helper beside it may
    /// have.
    pub(crate) fn body_name(&self) -> Ident {
        Ident::new(&format!("__hg_rpc_body_of_{}", self.bare_name()), self.signature.ident.span())
    }

    /// The function that holds the body: the attributes about code, the signature, the body.
    pub(crate) fn body_function(&self, body: &Group) -> TokenStream {
        let attributes = self.attributes.iter().filter(|attribute| !is_about_the_item(attribute));
        let mut signature = self.signature.clone();
        signature.ident = self.body_name();
        quote! { #(#attributes)* #signature #body }
    }

    /// Attributes of the struct that bears the name.
    pub(crate) fn item_attributes(&self) -> impl Iterator<Item = &Attribute> {
        self.attributes.iter().filter(|attribute| is_about_the_item(attribute))
    }

    /// `#[cfg]`, for everything that is generated.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Attribute> {
        self.attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"))
    }

    pub(crate) fn is_deprecated(&self) -> bool {
        self.attributes.iter().any(|attribute| attribute.path().is_ident("deprecated"))
    }

    pub(crate) fn is_async(&self) -> bool {
        self.signature.asyncness.is_some()
    }

    pub(crate) fn span(&self) -> Span {
        self.signature.ident.span()
    }
}

fn is_about_the_item(attribute: &Attribute) -> bool {
    ["doc", "cfg", "deprecated"].iter().any(|name| attribute.path().is_ident(name))
}
