//! What the attribute writes in place of the function.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::{Error, Ident, Result};

use crate::{function::Function, options::Options, types::Shape};

/// The struct that bears the name, its `Rpc`, and for a body the handler.
pub(crate) fn generate(options: &Options, function: &Function) -> Result<TokenStream> {
    check_together(options, function)?;
    let names = Names::new(options, function);
    let Function { visibility, signature, .. } = function;
    let name = &signature.ident;
    let attributes = function.item_attributes();
    let conditions = function.conditions();
    let lint = function.bare_name().trim_start_matches('_').starts_with(char::is_lowercase).then(
        || quote!(#[expect(non_camel_case_types, reason = "an RPC is named like its function")]),
    );
    let rpc = names.rpc(options);
    let same = options.implements.as_ref().map(|declaration| names.same_types(declaration));
    let body = function.body.as_ref().map(|body| function.body_function(body));
    let handler = body.is_some().then(|| names.handler(options));
    // What is generated may use a deprecated RPC; the body is judged as it stands.
    let quiet = function
        .is_deprecated()
        .then(|| quote!(#[expect(deprecated, reason = "implements the deprecated RPC")]));
    Ok(quote! {
        #(#attributes)*
        #lint
        #[derive(Clone, Copy, Debug)]
        #visibility struct #name;

        #(#conditions)*
        const _: () = {
            #body
            #quiet
            const _: () = {
                #rpc
                #same
                #handler
            };
        };
    })
}

/// What options and function cannot be at once.
fn check_together(options: &Options, function: &Function) -> Result<()> {
    if let Some(word) = &options.blocking {
        if function.is_async() {
            return Err(Error::new_spanned(
                word,
                "an `async fn` never blocks its thread: leave out `blocking` or `async`",
            ));
        }
        if function.body.is_none() {
            return Err(Error::new_spanned(
                word,
                "a declaration says what travels; `blocking` belongs to the function that \
                 implements it",
            ));
        }
    }
    if let (Some(path), None) = (&options.implements, &function.body) {
        return Err(Error::new_spanned(path, "a declaration implements nothing: give it a body"));
    }
    Ok(())
}

/// Everything that the pieces share.
struct Names<'f> {
    function: &'f Function,
    /// `::hg`
    hg: TokenStream,
    /// `::hg::__private`
    private: TokenStream,
    /// One variable for each argument that travels.
    values: Vec<Ident>,
}

impl<'f> Names<'f> {
    fn new(options: &Options, function: &'f Function) -> Self {
        let hg = options.hg.as_ref().map_or_else(|| quote!(::hg), |path| quote!(#path));
        let values = (0..function.arguments.len()).map(|at| format_ident!("__{at}")).collect();
        Self { function, private: quote!(#hg::__private), hg, values }
    }

    fn name(&self) -> &'f Ident {
        &self.function.signature.ident
    }

    /// `convert` for each argument and its variable.
    fn each(
        &self,
        convert: impl Fn(&Shape, &Ident, &TokenStream) -> TokenStream,
    ) -> Vec<TokenStream> {
        let pairs = self.function.arguments.iter().zip(&self.values);
        pairs.map(|(shape, value)| convert(shape, value, &self.private)).collect()
    }

    /// The tuple `__args` with every argument converted.
    fn convert(
        &self,
        conversion: impl Fn(&Shape, &Ident, &TokenStream) -> TokenStream,
    ) -> TokenStream {
        let values = &self.values;
        if values.is_empty() {
            return quote!(__args);
        }
        let converted = self.each(conversion);
        quote! {
            let (#(#values,)*) = __args;
            (#(#converted,)*)
        }
    }

    fn rpc(&self, options: &Options) -> TokenStream {
        let private = &self.private;
        let name = self.name();
        let full_name = self.full_name(options);
        let natural = self.each(|shape, _, _| shape.natural());
        let wire = self.each(|shape, _, private| shape.wire(private));
        let pack = self.convert(Shape::pack);
        let unpack = self.convert(Shape::unpack);
        let returns = &self.function.returns;
        let output = returns.output.natural();
        let wire_output = returns.output.wire(private);
        let returned = format_ident!("__output");
        let pack_output = returns.output.pack(&returned, private);
        let unpack_output = returns.output.unpack(&returned, private);
        let error = match &returns.error {
            Some(error) => quote!(#error),
            None => quote!(#private::NoError),
        };
        let checks = self.each(|shape, _, private| shape.check(private));
        let output_check = returns.output.check(private);
        quote! {
            #(#checks)*
            #output_check
            impl #private::Rpc for #name {
                const NAME: &'static ::core::primitive::str = #full_name;
                type Args<'a> = (#(#natural,)*);
                type WireArgs<'a> = (#(#wire,)*);
                type Output = #output;
                type WireOutput = #wire_output;
                type Error = #error;

                #[inline]
                fn signature_cell() -> &'static #private::SignatureCell {
                    static CELL: #private::SignatureCell = #private::SignatureCell::new();
                    &CELL
                }

                #[inline]
                fn pack<'a>(__args: Self::Args<'a>) -> Self::WireArgs<'a> {
                    #pack
                }

                #[inline]
                fn unpack<'a>(__args: Self::WireArgs<'a>) -> Self::Args<'a> {
                    #unpack
                }

                #[inline]
                fn pack_output(#returned: Self::Output) -> Self::WireOutput {
                    #pack_output
                }

                #[inline]
                fn unpack_output(#returned: Self::WireOutput) -> Self::Output {
                    #unpack_output
                }
            }
        }
    }

    fn full_name(&self, options: &Options) -> TokenStream {
        let private = &self.private;
        if let Some(name) = &options.name {
            return quote!(#name);
        }
        if let Some(declaration) = &options.implements {
            return quote!(<#declaration as #private::Rpc>::NAME);
        }
        let bare = self.function.bare_name();
        quote!(::core::concat!(::core::module_path!(), "::", #bare))
    }

    /// Functions that compile only if the handler's types are the declaration's.
    fn same_types(&self, declaration: &syn::Path) -> TokenStream {
        let private = &self.private;
        let name = self.name();
        let span = self.function.span();
        quote_spanned! { span=>
            fn _arguments_are_the_declared_ones<'a>(
                declared: <#declaration as #private::Rpc>::Args<'a>,
            ) -> <#name as #private::Rpc>::Args<'a> {
                declared
            }

            fn _result_is_the_declared_one(
                declared: ::core::result::Result<
                    <#declaration as #private::Rpc>::Output,
                    <#declaration as #private::Rpc>::Error,
                >,
            ) -> ::core::result::Result<
                <#name as #private::Rpc>::Output,
                <#name as #private::Rpc>::Error,
            > {
                declared
            }
        }
    }

    fn handler(&self, options: &Options) -> TokenStream {
        let serve = self.serve(options);
        let call = if self.function.is_async() { self.call_async() } else { self.call_plain() };
        quote! { #serve #call }
    }

    /// `Serve`: arguments in, the body's answer out.
    fn serve(&self, options: &Options) -> TokenStream {
        let Self { function, private, hg, values } = self;
        let name = self.name();
        let (generics, context) = match &function.context {
            Some(_) => (None, quote!(#hg::Request)),
            None => (Some(quote!(<Cx>)), quote!(Cx)),
        };
        let kind = match (function.is_async(), &options.blocking) {
            (true, _) => quote!(Async),
            (false, Some(_)) => quote!(Blocking),
            (false, None) => quote!(Plain),
        };
        let takes_context = function.context.is_some();
        let served = if function.is_async() { self.served_later() } else { self.served_now() };
        quote! {
            impl #generics #private::Serve<#context> for #name {
                const KIND: #private::ServeKind = #private::ServeKind::#kind;
                const TAKES_CONTEXT: bool = #takes_context;

                #[inline]
                fn serve<__A>(
                    __cx: &#context,
                    __args: Self::WireArgs<'_>,
                    __to: __A,
                ) -> __A::Done
                where
                    __A: #private::Responder<Self::Output, Self::Error>,
                {
                    let (#(#values,)*) = <Self as #private::Rpc>::unpack(__args);
                    #served
                }
            }
        }
    }

    fn served_now(&self) -> TokenStream {
        let Self { values, .. } = self;
        let body = self.function.body_name();
        let context = self.function.context.is_some().then(|| quote!(__cx,));
        let answer = self.answer(quote!(#body(#context #(#values,)*)));
        quote!(__to.now(#answer))
    }

    /// The future owns everything: a clone of the context, copies of what was borrowed.
    fn served_later(&self) -> TokenStream {
        let Self { values, .. } = self;
        let body = self.function.body_name();
        let has_context = self.function.context.is_some();
        let cloned = has_context.then(|| quote!(let __cx = ::core::clone::Clone::clone(__cx);));
        let context = has_context.then(|| quote!(&__cx,));
        let borrowed = self.function.arguments.iter().zip(values);
        let owned = borrowed
            .filter(|(shape, _)| shape.is_borrowed())
            .map(|(_, value)| quote!(let #value = ::std::borrow::ToOwned::to_owned(#value);));
        let passed = self.each(
            |shape, value, _| {
                if shape.is_borrowed() { quote!(&#value) } else { quote!(#value) }
            },
        );
        let answer = self.answer(quote!(#body(#context #(#passed,)*).await));
        quote! {
            #cloned
            #(#owned)*
            __to.later(async move { #answer })
        }
    }

    /// What the body gives, as `Result<Output, Error>`.
    fn answer(&self, value: TokenStream) -> TokenStream {
        match &self.function.returns.error {
            Some(_) => value,
            None => quote!(::core::result::Result::Ok(#value)),
        }
    }

    /// `add(2, 3)` runs the body here: the struct dereferences to a function pointer.
    fn call_plain(&self) -> TokenStream {
        let name = self.name();
        let body = self.function.body_name();
        let inputs = self.inputs(false);
        let output = &self.function.signature.output;
        quote! {
            impl ::core::ops::Deref for #name {
                type Target = fn(#(#inputs),*) #output;

                #[inline]
                fn deref(&self) -> &Self::Target {
                    const BODY: <#name as ::core::ops::Deref>::Target = #body;
                    &BODY
                }
            }
        }
    }

    /// `add(2, 3).await` runs the body here; its future needs a name, so it is boxed.
    fn call_async(&self) -> TokenStream {
        let Self { private, values, .. } = self;
        let name = self.name();
        let body = self.function.body_name();
        let borrows = self.function.context.is_some()
            || self.function.arguments.iter().any(Shape::is_borrowed);
        let generics = borrows.then(|| quote!(<'a>));
        let binder = borrows.then(|| quote!(for<'a>));
        let lifetime = if borrows { quote!('a) } else { quote!('static) };
        let inputs = self.inputs(borrows);
        let context = self.function.context.is_some().then(|| quote!(__cx));
        let variables: Vec<_> =
            context.into_iter().chain(values.iter().map(|value| quote!(#value))).collect();
        let output = match &self.function.signature.output {
            syn::ReturnType::Default => quote!(()),
            syn::ReturnType::Type(_, ty) => quote!(#ty),
        };
        let future = quote!(#private::LocalCall<#lifetime, #output>);
        quote! {
            impl ::core::ops::Deref for #name {
                type Target = #binder fn(#(#inputs),*) -> #future;

                #[inline]
                fn deref(&self) -> &Self::Target {
                    fn boxed #generics(#(#variables: #inputs),*) -> #future {
                        ::std::boxed::Box::pin(#body(#(#variables),*))
                    }
                    const BODY: <#name as ::core::ops::Deref>::Target = boxed;
                    &BODY
                }
            }
        }
    }

    /// The types of the function's inputs, with the lifetime `'a` or without.
    fn inputs(&self, lifetime: bool) -> Vec<TokenStream> {
        let lifetime = lifetime.then(|| quote!('a));
        let context = self.function.context.as_ref().map(|ty| match ty {
            syn::Type::Reference(reference) => {
                let request = &reference.elem;
                quote!(&#lifetime #request)
            }
            other => quote!(#other),
        });
        let arguments = self.function.arguments.iter().map(|shape| match shape {
            Shape::Str => quote!(&#lifetime ::core::primitive::str),
            Shape::Bytes => quote!(&#lifetime [::core::primitive::u8]),
            Shape::ByteVec(ty) | Shape::Plain(ty) => quote!(#ty),
        });
        context.into_iter().chain(arguments).collect()
    }
}
