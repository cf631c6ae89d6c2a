//! Answers questions with the tools of a server: the model says what to look up, and sees what came (ReAct).

use inferlet::{Args, Context, Result, Tools};

inferlet::main!(main);

async fn main(args: Args) -> Result<()> {
    let world = args.or("world", "http://127.0.0.1:8099".to_string())?;
    let tools = args.or("tools", "weather, population".to_string())?;
    let rounds = args.or("rounds", 12)?;
    args.finish()?;
    let only: Vec<&str> = tools.split(", ").collect();
    let toolbox = Tools::from_mcp(&format!("{}/mcp", world), Some(&only)).await?;
    loop {
        let question = args.receive().await?;
        if question.is_empty() {
            return Ok(());
        }
        let mut ctx = Context::new(args.model())?;
        toolbox.ask(&mut ctx, &question)?;
        let mut answer = format!("no answer after {} rounds", rounds);
        for _ in 0..=rounds {
            let turn = toolbox.turn(&mut ctx, 60).await?;
            for call in &turn.calls {
                let given: Vec<&str> = call.arguments.iter().filter_map(|(_, value)| value.as_str()).collect();
                args.send(format!("{}({}) = {}\n", call.name, given.join(", "), call.text)).await?;
            }
            if turn.calls.is_empty() {
                answer = turn.text;
                break;
            }
        }
        args.send(answer + "\n").await?;
    }
}
