"""The four primitives the protocol uses, each in one place: X25519 with HKDF, sealing, signing."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedcue.secure.refusals import MessageRefused

KEY_BYTES = 32
SIGNATURE_BYTES = 64
NONCE_BYTES = 12
SEAL_BYTES = NONCE_BYTES + 16
"""How much sealing lengthens a text: by the nonce before it and the tag behind it."""


def public_key(secret: bytes) -> bytes:
    """Return the X25519 public key that belongs to a secret of 32 bytes."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def agree(secret: bytes, public: bytes, client: int) -> bytes:
    """Return the secret that only the holders of two X25519 keys know; ``client`` holds the public one."""
    try:
        return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise MessageRefused(
            f"The public key of client {client} would let everybody know the secret."
        ) from error


def derive(secret: bytes, salt: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose (HKDF-SHA256)."""
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=purpose).derive(secret)


def seal(key: bytes, nonce: bytes, text: bytes, context: bytes) -> bytes:
    """Return the nonce and the text encrypted and authenticated together with its context."""
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, context)


def unseal(key: bytes, sealed: bytes, context: bytes, client: int) -> bytes:
    """Return the text that ``client`` sealed with this key in this context."""
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], context)
    except (InvalidTag, ValueError) as error:
        raise MessageRefused(
            f"The shares of client {client} were changed, or not sealed for this one."
        ) from error


def identity_key(identity: bytes) -> bytes:
    """Return the Ed25519 public key by which others know the holder of ``identity`` (32 secret bytes)."""
    return Ed25519PrivateKey.from_private_bytes(identity).public_key().public_bytes_raw()


def sign(identity: bytes, text: bytes) -> bytes:
    """Return the Ed25519 signature of a text."""
    return Ed25519PrivateKey.from_private_bytes(identity).sign(text)


def check_signature(public: bytes, signature: bytes, text: bytes, client: int) -> None:
    """Refuse a signature that the client did not make under this text."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError) as error:
        raise MessageRefused(
            f"The signature of client {client} is not its own, or is under other words than were shown here."
        ) from error
