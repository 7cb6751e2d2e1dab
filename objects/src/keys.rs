//! The keys of a store: variables of the environment hold them, or the machine gives some by the service of its cloud.

/// What the service of a cloud for keys has in all its URLs. Source: the guide to Amazon EC2, on the instance metadata service.
const SERVICE: [&str; 2] = ["/latest/api/token", "/latest/meta-data"];

/// The variables with keys.
const KEYS: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];

/// An error of a store as text. One that comes from the service of the cloud for keys says that no variables have them.
pub fn explained(error: &dyn std::fmt::Display) -> String {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    with_missing(&error.to_string(), &KEYS.into_iter().filter(|name| !is_set(name)).collect::<Vec<_>>())
}

fn with_missing(error: &str, missing: &[&str]) -> String {
    if missing.is_empty() || !SERVICE.iter().any(|part| error.contains(part)) {
        return error.to_owned();
    }
    let verb = if missing.len() == 1 { "is" } else { "are" };
    format!("no keys: {} {verb} not set, and this machine's cloud gives none: {error}", missing.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_service_for_keys_name_the_missing_variables() {
        let service = "Error performing PUT http://169.254.169.254/latest/api/token: refused";
        let said = with_missing(service, &KEYS);
        assert!(said.starts_with("no keys: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"), "{said}");
        assert!(said.ends_with(service), "{said}");
        assert!(with_missing(service, &KEYS[1..]).contains("AWS_SECRET_ACCESS_KEY is not set"));
        assert_eq!(
            with_missing("Error performing GET http://host/bucket/a", &KEYS),
            "Error performing GET http://host/bucket/a"
        );
        assert_eq!(with_missing(service, &[]), service);
    }
}
