//! Limits of each client, by token and by address.

use std::time::Duration;

use crate::clients::run;
use crate::common::{Client, binary_request, options, repository, start};
use of_serving::ClientLimits;
use of_test_support::component::{TRITONCLIENT, python_with, require};

#[test]
fn each_token_has_a_rate_of_its_own() {
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.tokens = vec!["one".into(), "two".into()];
    options.limits.client = ClientLimits { rate: Some(0.01), concurrency: None };
    let server = start(options);
    let mut client = Client::new(&server);
    let mut ask = |token: &str| {
        let bearer = format!("bearer {token}");
        client.send("GET", "/v2/models/digits", &[("authorization", &bearer)], b"").unwrap()
    };
    assert_eq!((ask("one").status, ask("two").status, ask("three").status), (200, 200, 401));
    let refused = ask("one");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(refused.status == 429 && (90..=100).contains(&wait), "{wait}");
    assert!(refused.text().contains("more than 0.01 requests a second"), "{}", refused.text());
    assert_eq!(client.get("/v2/health/ready").status, 200, "probes have no limit");
    let metrics = Client::to(server.addresses().metrics.unwrap()).get("/metrics").text();
    assert!(metrics.contains("of_client_refusals_total{limit=\"rate\"} 1"), "{metrics}");
}

#[test]
fn a_client_has_so_many_requests_at_the_same_time() {
    let dir = repository();
    let mut options = options(&[dir.path()]);
    // A request waits for others that do not come.
    options.repository.defaults.max_queue_delay = Duration::from_secs(1);
    options.limits.client = ClientLimits { rate: None, concurrency: Some(2) };
    let server = start(options);
    let statuses: Vec<u16> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let server = &server;
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(100 * number));
                    let (body, len) = binary_request(1, |_| 0.0);
                    let headers = [("inference-header-content-length", len.to_string())];
                    let headers = headers.each_ref().map(|(name, value)| (*name, &value[..]));
                    Client::new(server).send("POST", "/v2/models/digits/infer", &headers, &body).unwrap().status
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(Client::new(&server).get("/v2").status, 200, "they have ended");
}

#[test]
fn tritonclient_is_limited_over_grpc_and_in_streams() {
    let modules = ["numpy", "tritonclient.http", "tritonclient.grpc"];
    let Some(python) = require(&TRITONCLIENT, python_with(&modules)) else { return };
    let dir = repository();
    let mut options = options(&[dir.path()]);
    options.limits.client = ClientLimits { rate: Some(0.01), concurrency: None };
    run(&python, "client_limits.py", &start(options));
}
