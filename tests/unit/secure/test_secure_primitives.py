"""Each primitive gives the published answers, and a masked vector is what plain Python makes of the secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode

import numpy as np
import plain_primitives as plain
import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from secure_round import Round, session, stream, vectors

from fedcue.secure import keys, masks, messages, shamir
from fedcue.secure.refusals import MessageRefused, SecureSumError, SharesDoNotFit
from fedcue.secure.session import Step

ALICE = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
ALICE_PUBLIC = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
BOB = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
BOB_PUBLIC = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
AGREED = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
KEY_STREAM = bytes.fromhex(
    "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
)


def test_x25519_gives_the_answers_of_rfc_7748_section_6_1():
    assert keys.public_key(ALICE) == ALICE_PUBLIC == plain.x25519(ALICE, (9).to_bytes(32, "little"))
    assert keys.public_key(BOB) == BOB_PUBLIC
    assert keys.agree(ALICE, BOB_PUBLIC, 0) == keys.agree(BOB, ALICE_PUBLIC, 0) == AGREED
    assert plain.x25519(ALICE, BOB_PUBLIC) == AGREED


def test_hkdf_gives_the_answer_of_rfc_5869_case_1():
    secret, salt, info = b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA))
    answer = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert plain.hkdf(secret, salt, info, 42).hex() == answer
    assert keys.derive(secret, salt, info).hex() == answer[:64]


def test_the_mask_stream_is_the_key_stream_of_rfc_8439_appendix_a_1():
    total = np.zeros(16, np.uint64)
    masks.add_stream(total, bytes(32))
    assert total.astype("<u8").tobytes() == KEY_STREAM
    assert plain.chacha20_words(bytes(32), 16) == total.tolist()
    masks.add_stream(total, bytes(32), subtract=True)
    assert not total.any()


def test_the_mask_stream_goes_on_across_blocks(monkeypatch):
    monkeypatch.setattr(masks, "BLOCK_WORDS", 24)
    words = 2 * 24 + 5
    total, key = np.zeros(words, np.uint64), bytes(range(32))
    masks.add_stream(total, key)
    expected = plain.chacha20_words(key, words)
    assert total.tolist() == expected


def test_sealing_gives_the_answer_of_rfc_8439_section_2_8_2():
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    context = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for "
        b"the future, sunscreen would be it."
    )
    sealed = keys.seal(key, nonce, text, context)
    assert sealed[:12] == nonce
    assert sealed[12:28].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"
    assert len(sealed) == len(text) + keys.SEAL_BYTES
    assert keys.unseal(key, sealed, context, 0) == text
    assert ChaCha20Poly1305(key).decrypt(nonce, sealed[12:], context) == text
    with pytest.raises(MessageRefused, match="client 7"):
        keys.unseal(key, sealed, context + b"x", 7)


def test_signing_gives_the_answer_of_rfc_8032_test_1():
    secret = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    public = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
    signature = bytes.fromhex(
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
    )
    assert keys.identity_key(secret) == public
    assert keys.sign(secret, b"") == signature
    keys.check_signature(public, signature, b"", 0)
    with pytest.raises(MessageRefused, match="client 3"):
        keys.check_signature(public, signature, b"other", 3)


def test_a_public_key_of_low_order_is_refused():
    with pytest.raises(MessageRefused, match="client 5"):
        keys.agree(ALICE, bytes(32), 5)


def test_a_masked_vector_is_what_plain_python_makes_of_the_secrets():
    of = session([3, 10, 20], threshold=2, words=20)
    played = Round(of, vectors(of)).play(until=Step.MASK)
    states = {client: json.loads(one.written()) for client, one in played.clients.items()}
    seeds = {client: b64decode(state["self_seed"]) for client, state in states.items()}
    secrets = {client: b64decode(state["mask_secret"]) for client, state in states.items()}
    basepoint = (9).to_bytes(32, "little")
    ciphers = {u: plain.x25519(b64decode(states[u]["cipher_secret"]), basepoint) for u in states}
    public = {u: plain.x25519(secrets[u], basepoint) for u in states}
    name = {u: u.to_bytes(4, "big") for u in states}
    table = (3).to_bytes(4, "big") + b"".join(name[u] + ciphers[u] + public[u] for u in sorted(states))
    transcript = plain.sha256(b"fedcue secure sum 1: transcript" + of.digest + table)

    def pair(u: int, v: int) -> list[int]:
        low, high = min(u, v), max(u, v)
        info = b"pairwise mask" + name[low] + public[low] + name[high] + public[high]
        return plain.chacha20_words(plain.hkdf(plain.x25519(secrets[u], public[v]), transcript, info), 20)

    for u, reply in played.play_step().items():
        own = plain.chacha20_words(plain.hkdf(seeds[u], transcript, b"self mask" + name[u]), 20)
        expected = [int(x) + b for x, b in zip(played.inputs[u], own, strict=True)]
        for v in states.keys() - {u}:
            sign = 1 if u < v else -1
            expected = [total + sign * word for total, word in zip(expected, pair(u, v), strict=True)]
        sent = messages.MaskedInput.decode(reply, of, u)
        assert np.frombuffer(sent.words, "<u8").tolist() == [value % 2**64 for value in expected]
        assert sent.commitment == plain.hkdf(seeds[u], transcript, b"self mask commitment" + name[u])


def test_the_field_is_prime_and_holds_every_secret():
    assert shamir.PRIME.bit_length() == 257
    odd, twos = shamir.PRIME - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37):  # Miller and Rabin's test
        power = pow(base, odd, shamir.PRIME)
        powers = [pow(power, 2**k, shamir.PRIME) for k in range(twos)]
        assert power == 1 or shamir.PRIME - 1 in powers
    assert shamir.PRIME.bit_length() <= shamir.SHARE_BYTES * 8


def test_shares_lie_on_the_polynomial_that_was_drawn():
    drawn = iter([(5).to_bytes(48), (7).to_bytes(48)])
    shares = shamir.split((11).to_bytes(32), 3, [0, 1, 9], lambda size: next(drawn))
    assert {client: int.from_bytes(share) for client, share in shares.items()} == {
        client: 5 * x * x + 7 * x + 11 for client, x in {0: 1, 1: 2, 9: 10}.items()
    }
    assert shamir.combine(shares, 3) == (11).to_bytes(32)


def test_fewer_shares_fit_every_other_secret_as_well():
    secret, other, random = b"\x11" * 32, b"\xee" * 32, stream("shares")
    shares = shamir.split(secret, 3, range(5), random)
    known = {client: int.from_bytes(shares[client]) for client in (0, 4)}
    points = {0: int.from_bytes(other)} | {client + 1: value for client, value in known.items()}
    third = sum(
        value * np.prod([(3 - q) * pow(p - q, -1, shamir.PRIME) for q in points if q != p], dtype=object)
        for p, value in points.items()
    )
    forged = (int(third) % shamir.PRIME).to_bytes(33)
    assert shamir.combine({0: shares[0], 4: shares[4], 2: forged}, 3) == other


@pytest.mark.parametrize("share", [b"\xff" * 33, b"\0" * 32, shamir.PRIME.to_bytes(33)])
def test_a_share_that_is_no_number_of_the_field_is_refused(share):
    with pytest.raises(SharesDoNotFit, match="client 1"):
        shamir.combine({0: bytes(33), 1: share}, 2)


def test_shares_of_no_one_secret_are_refused():
    too_large = (shamir.PRIME - 1).to_bytes(33)
    with pytest.raises(SharesDoNotFit, match="do not belong to one secret"):
        shamir.combine({0: too_large, 1: too_large}, 2)


def test_a_secret_of_another_length_is_refused():
    with pytest.raises(SecureSumError, match="31 bytes"):
        shamir.split(bytes(31), 2, range(3), stream())


def test_secure_summation_needs_no_torch_and_quantising_no_cryptography():
    code = (
        "import sys, fedcue.secure.fixed_point; assert 'cryptography' not in sys.modules;"
        "import fedcue.secure.client, fedcue.secure.server; assert 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
