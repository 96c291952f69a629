"""docs/policies.md is what the docstrings say now, and leaves nothing blank."""

from tests.bench import policies_compared, policies_page


def test_the_page_is_current():
    made = "python -m tests.bench.policies_page"
    assert policies_page.PAGE.read_text(encoding="utf-8") == policies_page.text(), f"make it anew: {made}"


def test_every_field_says_what_it_means():
    rows = [line.split(" | ") for line in policies_page.text().splitlines() if line.startswith("| ")]
    blank = [row[0] for row in rows if not row[-1].rstrip("|").strip()]
    assert blank == [], "say in a comment behind the field what it means"


def test_what_is_compared_can_be_named_on_its_page():
    policies = (*policies_compared.INSIDE, *policies_compared.QUEUE)
    assert {policies_compared.starves(policy) for policy in policies} == {"", "no", "may"}
    assert policies_compared.starves("none") == ""
