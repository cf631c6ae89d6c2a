//! What `benchmarks policies` runs: one request, by a call for each step.

use inferlet::{Args, Context, Result};

inferlet::main!(main);

async fn main(args: Args) -> Result<()> {
    let (prompt, tokens): (usize, usize) = (args.required("prompt")?, args.required("tokens")?);
    let mut context = Context::new(args.model())?;
    context.fill_tokens(&vec![1; prompt])?;
    for _ in 0..tokens {
        let token = context.next_dist(1, 1.0).await?.max_index();
        context.fill_tokens(&[token])?;
    }
    Ok(())
}
