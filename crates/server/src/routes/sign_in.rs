//! Signing up and in with a code by e-mail: `/v1/tenants` (000 *Tenants*) and `/v1/auth` (000 *Auth*).
//! Both make the same accounts.

use std::sync::Arc;

use api::{CodeSent, SignIn, SignedIn, TenantCreated, VerifyCode};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::StatusCode;
use jiff::Timestamp;
use model::{Email, Plan};
use store::{Account, KeyFormat};

use crate::accounts::{CODES_PER_EMAIL, Codes};
use crate::app::App;
use crate::auth::{Attempt, admit};
use crate::body::Json;
use crate::refusal::Refusal;
use crate::target::NoQuery;

/// Sign up
///
/// Sends a one-time code to the address; `POST /v1/tenants/verify` takes it. An address that has an
/// account gets a code for it.
#[utoipa::path(
    post, path = "/v1/tenants", tag = "Accounts", operation_id = "create_tenant", security(()),
    request_body(content = SignIn),
    responses(
        (status = 200, description = "The code is on its way", body = CodeSent),
        (status = 400, description = "Not an e-mail address"),
        (status = 429, description = "Too many codes for this e-mail, or requests from this address"),
        (status = 500, description = "The mail could not be sent"),
        (status = 503, description = "The store does not answer"),
    )
)]
pub(crate) async fn sign_up(
    State(app): State<App>,
    attempt: Attempt,
    _none: NoQuery,
    Json { value, .. }: Json<SignIn>,
) -> Result<Answer<CodeSent>, Refusal> {
    send(&app, &attempt, value.email()?).await.map(Answer)
}

/// Finish signing up
///
/// With the code that was sent. Answers with a new API key, shown this once, and the account's token.
#[utoipa::path(
    post, path = "/v1/tenants/verify", tag = "Accounts", operation_id = "verify_tenant",
    security(()), request_body(content = VerifyCode),
    responses(
        (status = 200, description = "An account with a new key", body = TenantCreated),
        (status = 400, description = "Not an e-mail address"),
        (status = 401, description = "Not the code that was sent last, or it is used, has expired or was \
            guessed at too often"),
        (status = 429, description = "Too many requests from this address"),
        (status = 503, description = "The store does not answer"),
    )
)]
pub(crate) async fn verify_sign_up(
    State(app): State<App>,
    attempt: Attempt,
    _none: NoQuery,
    Json { value, .. }: Json<VerifyCode>,
) -> Result<Answer<TenantCreated>, Refusal> {
    let account = verify(&app, &attempt, &value).await?;
    let limits = app.store.standing(&account.owner).await?;
    let plan = limits.and_then(|row| row.plan).unwrap_or(Plan::Free);
    let key = app.store.create_key(&account.owner, plan, KeyFormat::Tenant, "sign-up").await?;
    Ok(Answer(TenantCreated {
        tenant_id: account.owner.to_string(),
        key_id: key.record.id,
        prefix: key.record.prefix,
        api_key: key.secret,
        plan_tier: plan.as_str().into(),
        created_at: account.created_at,
        token: app.accounts.tokens.issue(&account.owner, Timestamp::now())?,
    }))
}

/// Register
///
/// As `POST /v1/tenants`; `POST /v1/auth/verify-otp` takes the code.
#[utoipa::path(
    post, path = "/v1/auth/register", tag = "Accounts", operation_id = "register", security(()),
    request_body(content = SignIn),
    responses(
        (status = 201, description = "The code is on its way", body = CodeSent),
        (status = 400, description = "Not an e-mail address"),
        (status = 429, description = "Too many codes for this e-mail, or requests from this address"),
        (status = 500, description = "The mail could not be sent"),
        (status = 503, description = "The store does not answer"),
    )
)]
pub(crate) async fn register(
    State(app): State<App>,
    attempt: Attempt,
    _none: NoQuery,
    Json { value, .. }: Json<SignIn>,
) -> Result<(StatusCode, Answer<CodeSent>), Refusal> {
    let sent = send(&app, &attempt, value.email()?).await?;
    Ok((StatusCode::CREATED, Answer(sent)))
}

/// Sign in
///
/// Sends a one-time code to an account's address. For an address without an account the answer is the
/// same, and nothing is sent.
#[utoipa::path(
    post, path = "/v1/auth/login", tag = "Accounts", operation_id = "login", security(()),
    request_body(content = SignIn),
    responses(
        (status = 201, description = "If there is such an account, the code is on its way",
            body = CodeSent),
        (status = 400, description = "Not an e-mail address"),
        (status = 429, description = "Too many codes for this e-mail, or requests from this address"),
        (status = 503, description = "The store does not answer"),
    )
)]
pub(crate) async fn login(
    State(app): State<App>,
    attempt: Attempt,
    _none: NoQuery,
    Json { value, .. }: Json<SignIn>,
) -> Result<(StatusCode, Answer<CodeSent>), Refusal> {
    let email = value.email()?;
    attempt.is_about(&email);
    let code = new_code(&app, &email).await?;
    let app_of_task = Arc::clone(&app);
    // Whether there is an account shows neither in the answer nor in when it comes.
    app.tasks.spawn(async move {
        let app = app_of_task;
        let sent = match app.store.has_account(&email).await {
            Ok(true) => app.accounts.mailer.send_code(&email, &code).await,
            Ok(false) => Ok(()),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = sent {
            tracing::error!(error = format!("{error:#}"), "could not send a code");
        }
    });
    Ok((StatusCode::CREATED, Answer(code_sent(None))))
}

/// Finish signing in
///
/// With the code that was sent. Answers with the account's token; whoever has none yet has one now.
#[utoipa::path(
    post, path = "/v1/auth/verify-otp", tag = "Accounts", operation_id = "verify_otp",
    security(()), request_body(content = VerifyCode),
    responses(
        (status = 200, description = "The account's token", body = SignedIn),
        (status = 400, description = "Not an e-mail address"),
        (status = 401, description = "Not the code that was sent last, or it is used, has expired or was \
            guessed at too often"),
        (status = 429, description = "Too many requests from this address"),
        (status = 503, description = "The store does not answer"),
    )
)]
pub(crate) async fn verify_otp(
    State(app): State<App>,
    attempt: Attempt,
    _none: NoQuery,
    Json { value, .. }: Json<VerifyCode>,
) -> Result<Answer<SignedIn>, Refusal> {
    let account = verify(&app, &attempt, &value).await?;
    Ok(Answer(SignedIn {
        token: app.accounts.tokens.issue(&account.owner, Timestamp::now())?,
        user_id: account.owner.to_string(),
        email: account.email.map(|email| email.to_string()).unwrap_or_default(),
    }))
}

async fn send(app: &App, attempt: &Attempt, email: Email) -> Result<CodeSent, Refusal> {
    attempt.is_about(&email);
    let code = new_code(app, &email).await?;
    if app.accounts.is_for_tests(&email) {
        return Ok(code_sent(Some(code)));
    }
    app.accounts.mailer.send_code(&email, &code).await.map_err(model::Error::Internal)?;
    Ok(code_sent(None))
}

/// A code that nobody has been told yet.
async fn new_code(app: &App, email: &Email) -> Result<String, Refusal> {
    admit(app, &format!("code:{email}"), CODES_PER_EMAIL).await?;
    let code = Codes::draw()?;
    let digest = app.accounts.codes.digest(email, &code);
    app.store.put_code(email, digest, Timestamp::now()).await?;
    Ok(code)
}

/// What is done for an unknown e-mail is what is done for a wrong code.
async fn verify(app: &App, attempt: &Attempt, asked: &VerifyCode) -> Result<Account, Refusal> {
    let email = asked.email()?;
    attempt.is_about(&email);
    let digest = app.accounts.codes.digest(&email, &asked.code);
    let now = Timestamp::now();
    if !app.store.take_code(&email, digest, now).await? {
        return Err(Refusal::WrongCode);
    }
    Ok(app.store.open_account(&email, now).await?)
}

fn code_sent(verify_code: Option<String>) -> CodeSent {
    CodeSent { message: "OTP sent".into(), verify_code }
}
