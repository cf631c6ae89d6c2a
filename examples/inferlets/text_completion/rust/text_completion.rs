//! Completes `prompt` and returns how it ended.

use inferlet::{Args, Context, Json, Result, Sampler};

inferlet::main!(main);

async fn main(args: Args) -> Result<Json> {
    let prompt: String = args.required("prompt")?;
    let max_tokens = args.or("max_tokens", 60)?;
    let sampler = Sampler {
        temperature: args.or("temperature", 0.0)?,
        top_p: args.or("top_p", 1.0)?,
        seed: args.optional("seed")?,
        top_k: args.or("top_k", 0)?,
        ..Sampler::default()
    };
    let stop: Option<String> = args.optional("stop")?;
    args.finish()?;
    let mut ctx = Context::new(args.model())?;
    ctx.fill(prompt);
    let mut generation = ctx.generate(max_tokens).sampler(sampler);
    if let Some(stop) = stop {
        generation = generation.stop(stop);
    }
    args.stream(&mut generation).await?;
    let ended = generation.stop_reason().map_or("", |reason| reason.as_str());
    Ok(Json::object([("tokens", Json::from(generation.tokens().len())), ("ended", Json::from(ended))]))
}
