#include "core/sha256.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string>

namespace penstock {
namespace {

std::string hex_of(const std::string& text) {
  return to_hex(sha256(std::as_bytes(std::span(text))));
}

TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(hex_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex_of(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnThePieces) {
  const std::string text(200, 'x');
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const auto bytes = std::as_bytes(std::span(text));
    Sha256 hash;
    hash.update(bytes.first(cut));
    hash.update(bytes.subspan(cut));
    EXPECT_EQ(to_hex(hash.finish()), hex_of(text)) << cut;
  }
}

TEST(Sha256, PadsEveryLengthOfALastBlock) {
  // Digest of the digests of "", "a", "aa", ... up to 129 letters, from another implementation.
  Sha256 all;
  for (std::size_t length = 0; length < 130; ++length) {
    const std::string text(length, 'a');
    const auto digest = sha256(std::as_bytes(std::span(text)));
    all.update(std::as_bytes(std::span(digest)));
  }
  EXPECT_EQ(to_hex(all.finish()),
            "39a48225ae6069c68f7c9f867bf47f4a2e188c3903dd919926b8259a73ecada5");
}

}  // namespace
}  // namespace penstock
