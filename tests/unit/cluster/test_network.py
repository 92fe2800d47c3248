from paceline.cluster.network import addresses_of, read_interfaces


def test_interfaces_that_are_up_have_their_addresses(tmp_path):
    loopback = f"{1:032x} 01 80 10 80 lo\n"
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/if_inet6").write_text(loopback + loopback.replace("lo", "away0"))
    found = read_interfaces(tmp_path)
    assert found["lo"] == ["127.0.0.1", "::1"]
    assert "away0" not in found


def test_an_unknown_name_has_no_address():
    assert addresses_of("localhost")
    assert addresses_of("no such name") == []
    assert addresses_of("a" * 70) == []
