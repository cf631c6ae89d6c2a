//! The most likely answers by beam search, and the answer that taking the most likely token at each step gives.

use inferlet::{Args, Context, Result};

inferlet::main!(main);

async fn main(args: Args) -> Result<bool> {
    let question = args.or("question", "Is the sky blue?".to_string())?;
    let (width, length) = (args.or("width", 3)?, args.or("length", 24)?);
    args.finish()?;
    let mut ctx = Context::new(args.model())?;
    ctx.user(&question)?;
    let greedy = ctx.fork()?.generate(length).text().await?;
    let beams = ctx.beam(width, length).await?;

    args.send(format!("greedy: {}\n", greedy)).await?;
    for beam in &beams {
        args.send(format!("{:.2}: {}\n", beam.score, beam.text)).await?;
    }
    Ok(ctx.text()?.ends_with(&beams[0].text))
}
