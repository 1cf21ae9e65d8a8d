#include "core/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "support/temporary_folder.h"
#include "support/throws.h"

namespace halfbyte {
namespace {

using test::TemporaryFolder;

std::string content(const MappedFile& file) {
    return {file.bytes().begin(), file.bytes().end()};
}

TEST(MappedFile, ShowsTheBytes) {
    const TemporaryFolder folder;
    test::write_file(folder / "a", std::string("x\0y", 3));
    const MappedFile file(folder / "a");
    EXPECT_EQ(content(file), std::string("x\0y", 3));
    EXPECT_EQ(file.path(), folder / "a");
}

TEST(MappedFile, AnEmptyFileHasNoBytes) {
    const TemporaryFolder folder;
    test::write_file(folder / "empty", "");
    const MappedFile file(folder / "empty");
    EXPECT_TRUE(file.bytes().empty());
    file.release(file.bytes());
}

TEST(MappedFile, AReleasedRangeReadsTheSameAgain) {
    const TemporaryFolder folder;
    std::string text(100000, 'a');
    for (size_t i = 0; i < text.size(); i++) text[i] = char('a' + i % 23);
    test::write_file(folder / "big", text);
    const MappedFile file(folder / "big");
    EXPECT_EQ(content(file), text);
    file.release(file.bytes());
    file.release(file.bytes().subspan(4097, 8192));  // not at the edges of pages
    file.release(file.bytes().subspan(10, 5));       // inside one page
    EXPECT_EQ(content(file), text);
}

TEST(MappedFile, AChangeOfTheFileIsTold) {
    const TemporaryFolder folder;
    const std::filesystem::path path = test::write_file(folder / "a", std::string(10000, 'x'));
    const MappedFile file(path);
    file.check_unchanged();
    std::filesystem::resize_file(path, 9999);  // inside the last page, which reads as zeros then
    EXPECT_TRUE(test::throws(ErrorKind::failure,
                             path.string() + ": became shorter while it was read: 9999 bytes of 10000",
                             [&] { file.check_unchanged(); }));
    test::write_file(path, std::string(10000, 'y'));
    EXPECT_TRUE(test::throws(ErrorKind::failure, ": was written to while it was read",
                             [&] { file.check_unchanged(); }));
}

TEST(MappedFile, AFileThatIsRemovedOrReplacedStaysWhole) {
    const TemporaryFolder folder;
    const std::filesystem::path path = test::write_file(folder / "a", "old");
    const MappedFile file(path);
    std::filesystem::rename(test::write_file(folder / "b", "x"), path);
    file.check_unchanged();
    std::filesystem::remove(path);
    file.check_unchanged();
    EXPECT_EQ(content(file), "old");
}

TEST(MappedFile, AnAddressLeadsToTheFile) {
    const TemporaryFolder folder;
    const std::string path = test::write_file(folder / "a", std::string(10000, 'x'));
    const uint8_t* address = nullptr;
    {
        const MappedFile first(path), second(test::write_file(folder / "b", "x"));
        address = first.bytes().data();
        EXPECT_STREQ(mapped_place_of(address + 9999).path, path.c_str());
        EXPECT_FALSE(mapped_place_of(address).shorter);
        std::filesystem::resize_file(path, 1);
        EXPECT_TRUE(mapped_place_of(address).shorter);
        EXPECT_STREQ(mapped_place_of(second.bytes().data()).path, (folder / "b").c_str());
        EXPECT_EQ(mapped_place_of(&path).path, nullptr);
        EXPECT_EQ(mapped_place_of(nullptr).path, nullptr);
    }
    EXPECT_EQ(mapped_place_of(address).path, nullptr);
}

TEST(MappedFile, AMissingFileIsNamed) {
    const TemporaryFolder folder;
    const std::string path = (folder / "missing").string();
    EXPECT_TRUE(test::throws(ErrorKind::failure, path, [&] { MappedFile file(path); }));
}

TEST(MappedFile, AFolderIsRefused) {
    const TemporaryFolder folder;
    EXPECT_TRUE(test::throws(ErrorKind::failure, folder.path().string() + ": is a folder; a file is needed",
                             [&] { MappedFile file(folder.path()); }));
}

TEST(MappedFile, APipeWithoutAWriterIsRefusedRatherThanWaitedFor) {
    const TemporaryFolder folder;
    ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
    EXPECT_TRUE(
        test::throws(ErrorKind::failure, "is not a regular file", [&] { MappedFile file(folder / "pipe"); }));
}

}  // namespace
}  // namespace halfbyte
