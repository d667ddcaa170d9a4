//! `QuickJS`, the code in it, and the loop that waits for the host and for timers on its behalf.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use guest_proto::code::{Done, Job, PRELUDE, Scope};
use rquickjs::context::EvalOptions;
use rquickjs::function::{Func, IntoArgs};
use rquickjs::promise::PromiseState;
use rquickjs::{
    CatchResultExt as _, CaughtError, Context, Ctx, Exception, FromJs, Function, Object, Promise,
    Runtime, Value,
};

use crate::channel::{Channel, Wait};
use crate::output::{Output, cut};

/// A call of a call of a call…: beyond it the code gets a `RangeError`.
const STACK_BYTES_MAX: usize = 512 << 10;

/// When the code may run until.
#[derive(Clone, Copy)]
struct Clock {
    began: Instant,
    until: Instant,
}

/// What the prelude gives back.
struct Realm<'js> {
    ctx: Ctx<'js>,
    hooks: Object<'js>,
}

/// Runs the code to its end, whatever that is.
pub(crate) fn run(job: &Job, spec: Option<Vec<u8>>, channel: &Rc<Channel>) -> Done {
    let output = Rc::new(Output::new(job.stream_max));
    let clock = Clock::start(Duration::from_millis(job.timeout_ms));
    let ended = evaluate(job, spec, (channel, &output), clock);
    let (stdout, stderr) = output.take();
    let done = Done { stdout, stderr, ..Done::default() };
    match ended {
        Ok(result) => {
            let kept = cut(&result, job.result_max);
            Done { truncated: kept.len() < result.len(), result: Some(kept.to_owned()), ..done }
        }
        Err(_) if clock.is_over() => {
            let error = format!("the code did not end within {} ms", job.timeout_ms);
            Done { error: Some(error), ..done }
        }
        Err(error) => {
            let error = cut(&format!("{error:#}"), job.stream_max).to_owned();
            Done { error: Some(error), ..done }
        }
    }
}

fn evaluate(
    job: &Job,
    spec: Option<Vec<u8>>,
    (channel, output): (&Rc<Channel>, &Rc<Output>),
    clock: Clock,
) -> Result<String> {
    let runtime = Runtime::new().context("start the engine")?;
    runtime.set_memory_limit(job.memory_max);
    runtime.set_max_stack_size(STACK_BYTES_MAX);
    // No code can catch what this raises.
    runtime.set_interrupt_handler(Some(Box::new(move || clock.is_over())));
    let context = Context::full(&runtime).context("make a context")?;
    context.with(|ctx| {
        let host = host(&ctx, (channel, output), clock).context("make the host's functions")?;
        let realm = Realm::open(&ctx, host, job.scope)?;
        if let Some(spec) = spec {
            let spec = ctx.json_parse(spec).context("read the specification")?;
            ctx.globals().set("spec", spec).context("set the specification")?;
        }
        let main = realm.main(&job.code)?;
        let running: Promise<'_> = realm.call("run", (main,))?;
        realm.turn(&running, channel, clock)
    })
}

/// What the prelude is given.
fn host<'js>(
    ctx: &Ctx<'js>,
    (channel, output): (&Rc<Channel>, &Rc<Output>),
    clock: Clock,
) -> rquickjs::Result<Object<'js>> {
    let host = Object::new(ctx.clone())?;
    let (channel, output) = (Rc::clone(channel), Rc::clone(output));
    let call = move |ctx: Ctx<'js>, line: String| {
        let gone = |error: anyhow::Error| Exception::throw_message(&ctx, &format!("{error:#}"));
        channel.send(&line).map_err(gone)
    };
    host.set("call", Func::from(call))?;
    let write = move |stream: u32, text: String| output.write(stream, &text);
    host.set("write", Func::from(write))?;
    host.set("now", Func::from(move || clock.millis()))?;
    // One character a byte.
    let base64 = |text: String| -> String {
        let bytes: Vec<u8> = text.chars().filter_map(|c| u8::try_from(u32::from(c)).ok()).collect();
        STANDARD.encode(bytes)
    };
    host.set("base64", Func::from(base64))?;
    Ok(host)
}

impl<'js> Realm<'js> {
    fn open(ctx: &Ctx<'js>, host: Object<'js>, scope: Scope) -> Result<Self> {
        let scope = scope.as_str();
        let prelude: Function<'js> = ctx.eval(PRELUDE).context("read the prelude")?;
        let hooks = prelude.call((host, scope)).context("run the prelude")?;
        Ok(Self { ctx: ctx.clone(), hooks })
    }

    /// What the code is: a function, if all is well. It stands at the end of a statement of its own, so
    /// that a comment or a semicolon at its end does no harm.
    fn main(&self, code: &str) -> Result<Value<'js>> {
        const NAME: &str = "__main";
        let mut options = EvalOptions::default();
        options.filename = Some("code".into());
        let source = format!("globalThis.{NAME} = {code}\n");
        let evaluated = self.ctx.eval_with_options::<(), _>(source, options);
        evaluated.catch(&self.ctx).map_err(|thrown| self.explain(thrown))?;
        let globals = self.ctx.globals();
        let main = globals.get(NAME).context("take the code")?;
        globals.remove(NAME).context("take the code")?;
        Ok(main)
    }

    /// Lets the code go on until it is done.
    fn turn(&self, running: &Promise<'js>, channel: &Channel, clock: Clock) -> Result<String> {
        loop {
            while !clock.is_over() && self.ctx.execute_pending_job() {}
            if clock.is_over() {
                bail!("too late");
            }
            if running.state() != PromiseState::Pending {
                let result = running.result::<String>().context("look at the result")?;
                return result.catch(&self.ctx).map_err(|thrown| self.explain(thrown));
            }
            let waits: usize = self.call("waits", ())?;
            let timer: f64 = self.call("nextTimer", ())?;
            if waits == 0 && timer < 0.0 {
                bail!("the code waits for something that never happens");
            }
            let limit = match timer < 0.0 {
                true => clock.left(),
                false => clock.left().min(Duration::from_secs_f64(timer / 1000.0)),
            };
            if let Wait::Line(line) = channel.wait(Some(limit))? {
                let line = String::from_utf8(line).context("read a reply")?;
                self.call::<_, ()>("deliver", (line,))?;
            }
            self.call::<_, ()>("tick", ())?;
        }
    }

    fn call<A: IntoArgs<'js>, R: FromJs<'js>>(&self, hook: &str, arguments: A) -> Result<R> {
        let hook: Function<'js> = self.hooks.get(hook).with_context(|| hook.to_owned())?;
        let called = hook.call(arguments).catch(&self.ctx);
        called.map_err(|thrown| self.explain(thrown))
    }

    fn explain(&self, thrown: CaughtError<'js>) -> anyhow::Error {
        let value = match thrown {
            CaughtError::Exception(exception) => exception.into_value(),
            CaughtError::Value(value) => value,
            CaughtError::Error(error) => return error.into(),
        };
        let describe: rquickjs::Result<Function<'js>> = self.hooks.get("describe");
        let described = describe.and_then(|describe| describe.call((value,)));
        let silent = || anyhow!("the code failed and could not say why; is it out of memory?");
        described.map_or_else(|_| silent(), |text: String| anyhow!(text))
    }
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "there is no tokio in this program")]
    fn start(limit: Duration) -> Self {
        let began = Instant::now();
        Self { began, until: began + limit }
    }

    fn is_over(self) -> bool {
        self.left().is_zero()
    }

    #[expect(clippy::disallowed_methods, reason = "there is no tokio in this program")]
    fn left(self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    fn millis(self) -> f64 {
        self.began.elapsed().as_secs_f64() * 1000.0
    }
}
