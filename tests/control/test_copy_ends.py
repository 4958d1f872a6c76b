from vertumnusd.control.copies import Copy


def test_a_copy_reads_and_writes_at_every_home_of_its_spans():
    copy = Copy(b"", 0, source=0, destination=4, source_ranks=2, destination_ranks=4)
    assert [home for home in range(10) if copy.touches(home)] == [0, 1, 4, 5, 6, 7]


def test_an_end_without_a_number_of_ranks_is_one_home():
    copy = Copy(b"", 0, source=2, destination=5)
    assert [home for home in range(10) if copy.touches(home)] == [2, 5]
