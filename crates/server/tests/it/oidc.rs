//! Tokens of an issuer on loopback: whom they make one, and what is no good.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::client::Client;
use crate::harness::{Setup, TestServer};

struct Key {
    id: &'static str,
    signs: EncodingKey,
    public: Value,
}

/// Publishes keys; counts how often it was asked for them.
struct Issuer {
    url: String,
    published: Arc<Mutex<(Vec<Value>, usize)>>,
    _serving: AbortOnDropHandle<()>,
}

impl Key {
    fn new(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let private = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, private.as_ref(), &random).unwrap();
        let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let public =
            json!({ "kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "x": x, "y": y });
        Self { id, signs: EncodingKey::from_ec_der(private.as_ref()), public }
    }

    fn sign(&self, claims: &Value) -> String {
        let header = Header { kid: Some(self.id.into()), ..Header::new(Algorithm::ES256) };
        encode(&header, claims, &self.signs).unwrap()
    }
}

impl Issuer {
    async fn start(keys: &[&Key]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let keys = keys.iter().map(|key| key.public.clone()).collect();
        let published = Arc::new(Mutex::new((keys, 0)));
        let (state, base) = (Arc::clone(&published), url.clone());
        let serving = TaskTracker::new().spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let mut stream = BufReader::new(stream);
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await.unwrap() > 0
                {
                }
                let body = if head.starts_with("GET /.well-known/openid-configuration ") {
                    json!({ "issuer": base, "jwks_uri": format!("{base}/keys") })
                } else {
                    let mut state = state.lock().unwrap();
                    state.1 += 1;
                    json!({ "keys": state.0 })
                };
                let body = body.to_string();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            }
        });
        Self { url, published, _serving: AbortOnDropHandle::new(serving) }
    }

    fn publish(&self, keys: &[&Key]) {
        self.published.lock().unwrap().0 = keys.iter().map(|key| key.public.clone()).collect();
    }

    fn asked(&self) -> usize {
        self.published.lock().unwrap().1
    }

    /// Claims that are good.
    fn claims(&self, subject: &str) -> Value {
        let now = jiff::Timestamp::now().as_second();
        json!({ "iss": self.url, "aud": "bastide", "sub": subject, "exp": now + 600, "iat": now })
    }

    async fn server(&self) -> TestServer {
        let issuer = format!("[oidc]\nissuer = '{}'\naudience = 'bastide'", self.url);
        Setup::with(&issuer).start().await
    }
}

fn with(server: &TestServer, token: String) -> Client {
    Client { key: Some(token), ..server.nobody() }
}

#[tokio::test]
async fn a_subject_is_one_owner_that_may_do_what_an_account_may() {
    let key = Key::new("k1");
    let issuer = Issuer::start(&[&key]).await;
    let server = issuer.server().await;
    let ann = with(&server, key.sign(&issuer.claims("ann")));
    let me = ann.get("/v1/tenants/me").await.json(200);
    assert_eq!((&me["email"], &me["plan"]), (&Value::Null, &json!("free")));
    ann.get("/v1/sandboxes").await.json(200);
    let made = ann.post_nothing("/v1/api-keys").await.json(201);
    assert_eq!(made["owner"], me["tenant_id"]);
    let again = with(&server, key.sign(&issuer.claims("ann")));
    assert_eq!(again.get("/v1/tenants/me").await.json(200), me);
    let bob = with(&server, key.sign(&issuer.claims("bob")));
    assert_ne!(bob.get("/v1/tenants/me").await.json(200)["tenant_id"], me["tenant_id"]);
    assert_eq!(issuer.asked(), 1, "keys are kept");
    server.stop().await;
}

#[tokio::test]
async fn an_email_that_the_issuer_has_verified_leads_to_its_account() {
    let key = Key::new("k1");
    let issuer = Issuer::start(&[&key]).await;
    let server = issuer.server().await;
    let signed_in = server.account("ann").await.get("/v1/tenants/me").await.json(200);
    let mut claims = issuer.claims("subject-of-ann");
    claims["email"] = "ann@e2a-qa.test".into();
    for (verified, subject, same) in
        [(json!(false), "a", false), (json!("true"), "b", false), (json!(true), "c", true)]
    {
        claims["email_verified"] = verified;
        claims["sub"] = subject.into();
        let me = with(&server, key.sign(&claims)).get("/v1/tenants/me").await.json(200);
        assert_eq!(me["tenant_id"] == signed_in["tenant_id"], same, "{claims}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_key_that_the_issuer_changes_is_found_and_strangers_cost_it_little() {
    let (old, new) = (Key::new("old"), Key::new("new"));
    let issuer = Issuer::start(&[&old]).await;
    let server = issuer.server().await;
    let (of_old, of_new) = (old.sign(&issuer.claims("ann")), new.sign(&issuer.claims("ann")));
    with(&server, of_old.clone()).get("/v1/sandboxes").await.json(200);
    issuer.publish(&[&new]);
    with(&server, of_new).get("/v1/sandboxes").await.json(200);
    with(&server, of_old).get("/v1/sandboxes").await.problem(401, "unauthorized");
    let asked = issuer.asked();
    for _ in 0..20 {
        let stranger = with(&server, Key::new("unknown").sign(&issuer.claims("ann")));
        stranger.get("/v1/sandboxes").await.problem(401, "unauthorized");
    }
    assert!(issuer.asked() <= asked + 3, "{} after {asked}", issuer.asked());
    server.stop().await;
}

#[tokio::test]
async fn what_the_issuer_did_not_say_or_not_to_us_is_no_good() {
    let (key, other) = (Key::new("k1"), Key::new("k1"));
    let issuer = Issuer::start(&[&key]).await;
    let server = issuer.server().await;
    let claims = issuer.claims("ann");
    let changed = |name: &str, value: Value| {
        let mut claims = claims.clone();
        claims[name] = value;
        key.sign(&claims)
    };
    let without = |name: &str| {
        let mut claims = claims.clone();
        claims.as_object_mut().unwrap().remove(name);
        key.sign(&claims)
    };
    let now = jiff::Timestamp::now().as_second();
    let good = key.sign(&claims);
    let [head, body, tag] = good.split('.').collect::<Vec<_>>()[..] else { panic!("{good}") };
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    // A published key is no secret: used as one, it proves nothing.
    let secret = EncodingKey::from_secret(key.public.to_string().as_bytes());
    let symmetric = Header { kid: Some("k1".into()), ..Header::new(Algorithm::HS256) };
    for (what, token) in [
        ("another's signature", other.sign(&claims)),
        ("another issuer", changed("iss", json!("http://127.0.0.1:1"))),
        ("another audience", changed("aud", json!("somebody"))),
        ("no audience", without("aud")),
        ("no end", without("exp")),
        ("no subject", without("sub")),
        ("expired", changed("exp", json!(now - 3600))),
        ("an end of another type", changed("exp", json!("4000000000"))),
        ("not yet", changed("nbf", json!(now + 3600))),
        ("a beginning of another type", changed("nbf", json!("0"))),
        ("an empty subject", changed("sub", json!(""))),
        ("a subject with a line break", changed("sub", json!("ann\nbob"))),
        ("no signature", format!("{head}.{body}.")),
        ("alg none", format!("{}.{body}.", part(json!({ "alg": "none", "kid": "k1" })))),
        ("HS256", encode(&symmetric, &claims, &secret).unwrap()),
        ("a changed body", format!("{head}.{}.{tag}", part(issuer.claims("bob")))),
    ] {
        let answer = with(&server, token).get("/v1/sandboxes").await;
        assert_eq!(answer.status, 401, "{what}");
    }
    with(&server, good).get("/v1/sandboxes").await.json(200);
    server.stop().await;
}

#[tokio::test]
async fn an_issuer_that_does_not_answer_is_a_503_for_its_tokens_alone() {
    let key = Key::new("k1");
    let issuer = Issuer::start(&[&key]).await;
    let token = key.sign(&issuer.claims("ann"));
    let server = issuer.server().await;
    drop(issuer);
    with(&server, token).get("/v1/sandboxes").await.problem(503, "unavailable");
    server.operator.get("/v1/sandboxes").await.json(200);
    with(&server, "nonsense".into()).get("/v1/sandboxes").await.problem(401, "unauthorized");
    server.stop().await;
}
