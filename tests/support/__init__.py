"""What tests share: flows, operators, scenarios and harnesses; no test is in here."""
