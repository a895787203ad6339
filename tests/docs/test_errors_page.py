from errors_page import PAGE, page


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text() == page(), "run `make docs`"
