//! What `benchmarks features` asks of servers of completions too, the agent `react` of `benchmarks agents`, and that of
//! `benchmarks optimizations`, as `paper/feature.py`, `paper/agent.py` and `paper/api_agent.py` have them. A completion is
//! an agent without I/O.

mod api_agent;

use inferlet::{http_get, try_join_all, Args, Context, Json, Result, Sampler};

inferlet::main!(main);

async fn main(args: Args) -> Result<Json> {
    let (texts, observed) = match args.optional::<Vec<Vec<u32>>>("docs")? {
        Some(docs) => {
            let result: Vec<u32> = args.required("result")?;
            (vec![api_agent::run(&args, &docs).await?], docs.len() * result.len())
        }
        None => behind_prompt(&args).await?,
    };
    if args.or("show", false)? {
        let list = |tokens: Vec<u32>| Json::List(tokens.into_iter().map(Json::from).collect());
        return Ok(Json::List(texts.into_iter().map(list).collect()));
    }
    Ok((texts.iter().map(Vec::len).sum::<usize>() - observed).into())
}

/// The texts behind a prompt, and how many of their tokens are those of results.
async fn behind_prompt(args: &Args) -> Result<(Vec<Vec<u32>>, usize)> {
    let prompt: Vec<u32> = args.required("prompt")?;
    let (tokens, n): (usize, usize) = (args.required("tokens")?, args.or("n", 1)?);
    let mut context = Context::new(args.model())?;
    context.fill_tokens(&prompt)?;
    let (texts, observed) = if let Some(schema) = args.optional::<Json>("schema")? {
        context.generate(tokens).schema(schema.to_string()).text().await?;
        (vec![context], 0)
    } else if n > 1 {
        (samples(context, tokens, n).await?, 0)
    } else {
        let observed = steps(args, &mut context, tokens).await?;
        (vec![context], observed)
    };
    let behind = texts.into_iter().map(|mut text| Ok(text.tokens()?[prompt.len()..].to_vec()));
    Ok((behind.collect::<Result<_>>()?, observed))
}

async fn samples(mut context: Context, tokens: usize, n: usize) -> Result<Vec<Context>> {
    context.flush().await?;
    let mut forks = (0..n).map(|_| context.fork()).collect::<Result<Vec<Context>>>()?;
    let sampler = |seed| Sampler { seed: Some(seed), ..Sampler::default() };
    try_join_all(forks.iter_mut().zip(0..).map(|(fork, seed)| generate(fork, tokens, sampler(seed)))).await?;
    Ok(forks)
}

/// Tokens behind the prompt, and behind each of `ios` results of a tool; how many tokens these have.
async fn steps(args: &Args, context: &mut Context, tokens: usize) -> Result<usize> {
    let (ios, observation): (u32, u32) = (args.or("ios", 0)?, args.or("observation", 0)?);
    let url: String = args.or("url", String::new())?;
    for step in 0..=ios {
        generate(context, tokens, Sampler::greedy()).await?;
        if step < ios {
            http_get(&url).send().await?.check()?;
            let seen: Vec<u32> = (0..observation).map(|place| 65 + (31 * step + 7 * place) % 180).collect();
            context.fill_tokens(&seen)?;
        }
    }
    Ok((ios * observation) as usize)
}

async fn generate(context: &mut Context, tokens: usize, sampler: Sampler) -> Result<String> {
    context.generate(tokens).ignore_stop_tokens().sampler(sampler).text().await
}
