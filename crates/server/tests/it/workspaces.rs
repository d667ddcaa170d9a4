//! `/v1/workspaces`, and links to their files.

use axum::body::Body;
use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::harness::{Setup, TestServer};

const PATH: &str = "/v1/workspaces/my-app/default";

impl Client {
    async fn ask(&self, method: &str, path: &str) -> Answer {
        self.send(self.request(method, path).body(Body::empty()).unwrap()).await
    }
}

/// What follows the host of a link.
fn target(link: &Value) -> String {
    let url = link["url"].as_str().unwrap();
    let (_, rest) = url.split_once("://").unwrap();
    rest[rest.find('/').unwrap()..].to_owned()
}

async fn put(server: &TestServer, client: &Client, path: &str, bytes: &str) {
    let link = client.ask("PUT", &format!("{PATH}/files/{path}")).await.json(200);
    assert_eq!(link["expires_in"], 3600);
    let nobody = server.nobody();
    let request = nobody.request("PUT", &target(&link)).header("content-length", bytes.len());
    let sent = nobody.send(request.body(Body::from(bytes.to_owned())).unwrap()).await;
    assert_eq!(sent.json(200), json!({ "status": "uploaded" }));
}

#[tokio::test]
async fn files_go_in_and_out_by_links_that_need_no_key() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    put(&server, &ann, "out%20put.json", "{}").await;
    put(&server, &ann, "data/%C3%BC.csv", "a,b").await;

    let path = format!("{PATH}/files/data/%C3%BC.csv");
    let link = ann.get(&path).await.json(200);
    let got = server.nobody().get(&target(&link)).await;
    assert_eq!((got.status.as_u16(), &got.bytes[..]), (200, b"a,b".as_slice()));
    assert_eq!(got.header("content-disposition"), "attachment");
    assert_eq!(got.header("content-type"), "application/octet-stream");
    assert_eq!(got.header("x-content-type-options"), "nosniff");
    let request = ann.request("GET", &path).header("accept", "application/octet-stream");
    let raw = ann.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!((raw.status.as_u16(), &raw.bytes[..]), (200, b"a,b".as_slice()));

    let listed = ann.get(PATH).await.json(200);
    let paths: Vec<_> =
        listed["files"].as_array().unwrap().iter().map(|file| &file["path"]).collect();
    assert_eq!(paths, ["data/ü.csv", "out put.json"]);
    assert_eq!(listed["files"][0]["size"], 3);
    assert!(listed["files"][0]["modified"].as_str().unwrap().ends_with('Z'));
    assert_eq!(listed.get("next_token"), None);
    let all = ann.get("/v1/workspaces").await.json(200);
    let one = json!({ "app_id": "my-app", "capset_id": "default", "size_bytes": 5 });
    assert_eq!(all, json!({ "workspaces": [one] }));
    let usage = ann.get(&format!("{PATH}/usage")).await.json(200);
    assert_eq!(usage["file_count"], 2);
    assert!(usage["total_size_mib"].as_f64().unwrap() > 0.0);

    assert_eq!(ann.delete(&path).await.json(200), json!({ "status": "deleted" }));
    ann.delete(&path).await.problem(404, "not_found");
    ann.get(&path).await.problem(404, "not_found");
    server.nobody().get(&target(&link)).await.problem(404, "not_found");
    assert_eq!(ann.delete(PATH).await.json(200), json!({ "status": "deleted" }));
    ann.delete(PATH).await.problem(404, "not_found");
    server.stop().await;
}

#[tokio::test]
async fn pages_follow_each_other() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    for i in 0..5 {
        put(&server, &ann, &format!("d/{i}"), "x").await;
    }
    put(&server, &ann, "other", "x").await;
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = ann.get(&format!("{PATH}?prefix=d/&limit=2{token}")).await.json(200);
        let files = page["files"].as_array().unwrap().clone();
        seen.extend(files.iter().map(|file| file["path"].as_str().unwrap().to_owned()));
        let Some(next) = page["next_token"].as_str() else { break };
        assert_eq!(files.len(), 2);
        token = format!("&token={next}");
    }
    assert_eq!(seen, ["d/0", "d/1", "d/2", "d/3", "d/4"]);
    ann.get(&format!("{PATH}?limit=0")).await.refuses("limit");
    ann.get(&format!("{PATH}?token=Li4vYQ")).await.refuses("token");
    ann.get(&format!("{PATH}?token=%00")).await.refuses("token");
    ann.get(&format!("{PATH}?pre=x")).await.refuses("pre");
    server.stop().await;
}

#[tokio::test]
async fn a_link_is_for_its_own_method_and_file_until_it_expires() {
    let server = Setup::with("[workspaces]\nlink_seconds = 2\n").start().await;
    let (ann, nobody) = (server.account("ann").await, server.nobody());
    let link = |method: &'static str, path: &'static str| {
        let ann = ann.clone();
        async move { ann.ask(method, &format!("{PATH}/files/{path}")).await.json(200) }
    };
    let for_put = target(&link("PUT", "a").await);
    let send = async |method: &str, path: &str| {
        let request = nobody.request(method, path).header("content-length", "1");
        nobody.send(request.body(Body::from("x")).unwrap()).await
    };
    send("PUT", &for_put).await.json(200);
    let for_get = target(&link("GET", "a").await);
    assert_eq!(nobody.get(&for_get).await.status, 200);

    send("PUT", &for_get).await.problem(403, "forbidden");
    nobody.get(&for_put).await.problem(403, "forbidden");
    let (path, query) = for_get.split_once('?').unwrap();
    let owner = path.split('/').nth(3).unwrap();
    assert!(owner.starts_with("usr_"));
    let tampered = [
        format!("{path}?{}", query.replace("expires=", "expires=9")),
        format!("{}?{query}", path.replace("/a", "/b")),
        format!("{}?{query}", path.replace(owner, "usr_bob")),
        format!("{}?{query}", path.replace("default", "other")),
        format!("{}?{query}", path.replace("my-app/default/a", "my-app/default%2Fa/a")),
        format!("{path}?{}A", query),
        path.to_owned(),
        format!("{path}?expires=99999999999&signature="),
    ];
    for bad in tampered {
        let answer = nobody.get(&bad).await;
        assert!([403, 404].contains(&answer.status.as_u16()), "{bad}: {answer:?}");
    }
    for _ in 0..500 {
        if nobody.get(&for_get).await.status == 403 {
            return server.stop().await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the link still works");
}

#[tokio::test]
async fn no_path_leads_out_and_anothers_workspace_is_not_there() {
    let server = TestServer::start().await;
    let (ann, bob) = (server.account("ann").await, server.account("bob").await);
    put(&server, &ann, "a", "anns").await;
    for bad in
        ["..%2F..%2Fa", "a%2F..%2F..%2Fx", "a//b", "%2Fetc%2Fpasswd", "a%00", "a%5C..%5Cb", "."]
    {
        for method in ["GET", "PUT", "DELETE"] {
            let answer = ann.ask(method, &format!("{PATH}/files/{bad}")).await;
            assert_eq!(answer.status, 400, "{method} {bad}: {answer:?}");
            answer.refuses("path");
        }
    }
    for bad in ["..%2Fusr_ann/default", "my-app/..", "%2E%2E/default", "a%20b/c"] {
        ann.get(&format!("/v1/workspaces/{bad}")).await.problem(404, "not_found");
    }
    let path = format!("{PATH}/files/a");
    bob.get(&path).await.problem(404, "not_found");
    bob.delete(&path).await.problem(404, "not_found");
    bob.delete(PATH).await.problem(404, "not_found");
    assert_eq!(bob.get(PATH).await.json(200), json!({ "files": [] }));
    assert_eq!(bob.get("/v1/workspaces").await.json(200), json!({ "workspaces": [] }));
    server.nobody().get(PATH).await.problem(401, "unauthorized");
    server.tenant("carol").await.get(PATH).await.problem(401, "unauthorized");
    let request = ann.request("PUT", &path).header("content-length", "1");
    ann.send(request.body(Body::from("x")).unwrap()).await.refuses("body");
    server.stop().await;
}

#[tokio::test]
async fn what_a_sandbox_leaves_is_in_storage_and_a_mounted_workspace_stays() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    let wanted = json!({ "template": "standard", "workspace_enabled": true,
        "app_id": "my-app", "capset_id": "default" });
    put(&server, &ann, "in", "put before").await;
    let made = ann.post("/v1/sandboxes", &wanted).await.json(201);
    let path = format!("/v1/sandboxes/{}", made["id"].as_str().unwrap());
    let command = json!({ "command": "cat in; echo made inside > out" });
    let ran = ann.post(&format!("{path}/exec"), &command).await.json(200);
    assert_eq!(ran["output"], "put before");
    ann.delete(PATH).await.problem(409, "wrong_state");
    ann.delete(&path).await.json(200);
    let request = ann.request("GET", &format!("{PATH}/files/out"));
    let request = request.header("accept", "application/octet-stream").body(Body::empty());
    assert_eq!(&ann.send(request.unwrap()).await.bytes[..], b"made inside\n");
    ann.delete(PATH).await.json(200);
    server.stop().await;
}

#[tokio::test]
async fn workspaces_come_in_pages_with_their_sizes() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    for app in ["b", "a", "c"] {
        let path = format!("/v1/workspaces/{app}/x/files/f");
        let link = ann.ask("PUT", &path).await.json(200);
        let request = server.nobody().request("PUT", &target(&link)).header("content-length", 3);
        server.nobody().send(request.body(Body::from("abc")).unwrap()).await.json(200);
    }
    let first = ann.get("/v1/workspaces?limit=2").await.json(200);
    let token = first["next_token"].as_str().unwrap();
    let second = ann.get(&format!("/v1/workspaces?limit=2&token={token}")).await.json(200);
    assert_eq!(second.get("next_token"), None);
    let all = [first, second].map(|page| page["workspaces"].as_array().unwrap().clone()).concat();
    let names: Vec<_> = all.iter().map(|one| one["app_id"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(all.iter().all(|one| one["size_bytes"] == 3));
    ann.delete("/v1/workspaces/a/x/files/f").await.json(200);
    let left = ann.get("/v1/workspaces").await.json(200);
    assert_eq!(left["workspaces"].as_array().unwrap().len(), 2, "{left}");
    ann.get("/v1/workspaces?limit=0").await.refuses("limit");
    for bad in ["x", "YQ", "Li4vYQ", "%00"] {
        ann.get(&format!("/v1/workspaces?token={bad}")).await.refuses("token");
    }
    server.stop().await;
}

#[tokio::test]
async fn beyond_the_quota_nothing_more_comes_in_until_something_goes() {
    let server = Setup::with("[quotas.free]\nworkspace_gib_max = 0\n").start().await;
    let ann = server.account("ann").await;
    let path = format!("{PATH}/files/a");
    // Nothing is kept yet: there is room for a link, and none for a byte.
    let link = ann.ask("PUT", &path).await.json(200);
    let nobody = server.nobody();
    let put = async |link: &Value, bytes: &'static str| {
        let request = nobody.request("PUT", &target(link)).header("content-length", bytes.len());
        nobody.send(request.body(Body::from(bytes)).unwrap()).await
    };
    let refused = put(&link, "x").await;
    refused.problem(429, "quota_exceeded");
    assert_eq!(refused.header("retry-after"), "3600");
    ann.get(&path).await.problem(404, "not_found");
    // Nobody can give himself more.
    let more = target(&link).replace("quota_gib=0", "quota_gib=9");
    assert!(more.contains("quota_gib=9"));
    for link in [more.clone(), more.replace("&quota_gib=9", "")] {
        let request = nobody.request("PUT", &link).header("content-length", "1");
        nobody.send(request.body(Body::from("x")).unwrap()).await.problem(403, "forbidden");
    }

    let limits = format!("/v1/admin/owners/{}/limits", owner(&ann).await);
    let set = async |gib: Value| {
        let request = server.operator.request("PUT", &limits);
        let body = Body::from(json!({ "workspace_gib_max": gib }).to_string());
        server.operator.send(request.body(body).unwrap()).await.json(200)
    };
    assert_eq!(set(json!(1)).await["workspace_gib_max"], 1);
    let link = ann.ask("PUT", &path).await.json(200);
    put(&link, "kept").await.json(200);
    set(json!(0)).await;
    ann.ask("PUT", &path).await.problem(429, "quota_exceeded");
    let wanted = json!({ "template": "standard", "workspace_enabled": true,
        "app_id": "my-app", "capset_id": "default" });
    ann.post("/v1/sandboxes", &wanted).await.problem(429, "quota_exceeded");
    ann.post("/v1/sandboxes", &json!({ "template": "standard" })).await.json(201);
    // The operator's plan has no such limit, and reading is free.
    ann.get(&path).await.json(200);
    server.operator.ask("PUT", &path).await.json(200);
    ann.delete(&path).await.json(200);
    ann.ask("PUT", &path).await.json(200);
    ann.post("/v1/sandboxes", &wanted).await.json(201);
    server.stop().await;
}

async fn owner(client: &Client) -> String {
    client.get("/v1/usage").await.json(200)["tenant_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_file_in_the_way_of_a_directory_is_a_conflict_and_no_failure_of_the_storage() {
    let server = TestServer::start().await;
    let ann = server.account("ann").await;
    put(&server, &ann, "a", "file").await;
    ann.get(&format!("{PATH}/files/a/b")).await.problem(404, "not_found");
    ann.delete(&format!("{PATH}/files/a/b")).await.problem(404, "not_found");
    assert_eq!(ann.get(&format!("{PATH}?prefix=a/b/")).await.json(200), json!({ "files": [] }));
    let link = ann.ask("PUT", &format!("{PATH}/files/a/b")).await.json(200);
    let nobody = server.nobody();
    let request = nobody.request("PUT", &target(&link)).header("content-length", 1);
    nobody.send(request.body(Body::from("x")).unwrap()).await.problem(409, "name_taken");
    server.stop().await;
}
