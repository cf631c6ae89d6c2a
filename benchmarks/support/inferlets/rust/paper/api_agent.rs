//! The agent of `benchmarks optimizations`, as `paper/api_agent.py` has it.

use inferlet::{http_get, try_join_all, Args, Code, Context, Result, Sampler};

use crate::generate;

/// What stands behind the query, results included.
pub async fn run(args: &Args, docs: &[Vec<u32>]) -> Result<Vec<u32>> {
    let (system, query): (Vec<u32>, Vec<u32>) = (args.required("system")?, args.required("query")?);
    let (url, result): (String, Vec<u32>) = (args.required("url")?, args.required("result")?);
    let (tokens, written): (usize, usize) = (args.required("tokens")?, args.required("written")?);
    let (on_sight, drops): (bool, bool) = (args.required("sight")?, args.required("drop")?);
    let mut context = if args.required("export")? {
        prepared(args, &system, docs).await?
    } else {
        let mut context = Context::new(args.model())?;
        context.fill_tokens(&system)?.fill_tokens(&docs.concat())?;
        context
    };
    context.fill_tokens(&query)?;
    let (mut calls, mut begin) = (Vec::new(), system.len());
    for doc in docs {
        if on_sight {
            let mut text = context.generate(tokens).ignore_stop_tokens();
            while text.next().await?.is_some() && text.tokens().len() < written {}
            calls.push(http_get(&url).send());
            text.text().await?;
        } else {
            generate(&mut context, tokens, Sampler::greedy()).await?;
            http_get(&url).send().await?.check()?;
        }
        if drops {
            context.drop_tokens(begin, begin + doc.len(), false)?; // before more is filled, which would run first
        }
        context.fill_tokens(&result)?;
        begin += doc.len();
    }
    generate(&mut context, tokens, Sampler::greedy()).await?;
    for response in try_join_all(calls).await? {
        response.check()?;
    }
    Ok(context.tokens()?[begin + query.len()..].to_vec())
}

/// The system's text and the documentation behind each other, each computed once for all agents. What is popular was
/// computed at its place, the same for all, and its pages are shared; the rest behind it, and `join` moves it.
async fn prepared(args: &Args, system: &[u32], docs: &[Vec<u32>]) -> Result<Context> {
    let (numbers, popular): (Vec<usize>, usize) = (args.required("numbers")?, args.required("popular")?);
    let mut parts = vec![opened(args, "system".to_string(), system, 0)];
    for (number, doc) in numbers.iter().zip(docs) {
        let place = system.len() + doc.len() * popular.min(*number);
        parts.push(opened(args, format!("api {}", number), doc, place));
    }
    Context::join(try_join_all(parts).await?.iter_mut())
}

async fn opened(args: &Args, name: String, tokens: &[u32], position: usize) -> Result<Context> {
    match Context::open(&name, args.model(), "").await {
        Err(error) if error.code == Code::NotFound => {
            let mut context = Context::with(args.model(), "", position)?;
            context.fill_tokens(tokens)?;
            context.export(&name).await?;
            Ok(context)
        }
        opened => opened,
    }
}
